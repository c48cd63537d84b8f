"""Views of a profile: the table, HTML, the trace, JSON and back."""

import json
import re
from dataclasses import replace
from math import fsum

import pytest
from profiled import made_by_hand

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.profile.dispatches import uncovered
from pyc_mlir.profile.profile import KEY, Disturbance, Profile
from pyc_mlir.profile.views import table

GOLDEN = """\
A call takes 10 s (measured): 20% in generated kernels, 70% in IREE's code for what no kernel \
covers (conv2d 60%, unknown 10%), 10% outside of dispatches.
  time   share    spread  roof  code  operations             nodes of the model
   6 s   60.0%                  IREE  conv2d
   2 s   20.0%  -5% +10%   50%  gemm  matmul+add             dense <1>
   1 s   10.0%                  IREE  unknown
   1 s   10.0%                        outside of dispatches
  10 s  100.0%                        the call
  measured by hand
  profiling changes the CPU time of a call by +25.0%: 10 s with, 8 s without, in turn; a call from \
Python takes 9 s (medians)
  roof: 1 GFLOP/s
"""


def test_the_table():
    assert str(made_by_hand()) == GOLDEN


def test_a_short_table_sums_up_the_rest():
    text = table(made_by_hand(), most=1)
    assert "3 s   30.0%" in text and "2 more operations" in text


def test_equal_operations_are_one_row_with_a_short_title():
    by_hand = made_by_hand()
    kernel = by_hand.rows[0]
    ops = ("matmul+add+mul+relu",)
    again = replace(kernel, seconds=1.0, share=0.1, locations=("b", "c"), roofline=0.2)
    rows = tuple(replace(row, ops=ops) for row in (kernel, again))
    (operation, *others) = replace(by_hand, rows=(*rows, *by_hand.rows[1:])).operations[1:]
    assert (operation.seconds, operation.title) == (3.0, "matmul+add+mul and 1 more")
    assert operation.named == "dense <1>, b and 1 more" and operation.is_kernel
    assert operation.roofline == pytest.approx((2 * 0.5 + 0.2) / 3)
    assert [o.title for o in uncovered(others)] == ["unknown"] and others[0].roofline is None
    assert re.search(
        r"30\.0% +2 +40% +gemm", table(replace(by_hand, rows=(*rows, *by_hand.rows[1:])))
    )


def test_rows_add_up_to_the_call():
    profile = made_by_hand()
    assert fsum(r.seconds for r in profile.rows) == pytest.approx(profile.seconds)
    assert fsum(r.share for r in profile.rows) == pytest.approx(1.0)
    assert profile.kernels + profile.uncovered + profile.outside == pytest.approx(profile.seconds)


def test_disturbed_calls_are_called_so():
    calm = made_by_hand()
    disturbed = replace(calm, disturbance=Disturbance(5.0, 5.0, 9.0))
    assert disturbed.is_disturbed and "measure again" in str(disturbed)
    # Several threads together may take more CPU time than the call, or less.
    assert not replace(disturbed, device="local-task").is_disturbed and not calm.is_disturbed


def test_html_is_escaped():
    text = made_by_hand()._repr_html_()
    assert "dense &lt;1&gt;" in text and "<1>" not in text
    assert text.count("<tr>") == 1 + 3 + 2


def test_the_trace_is_a_trace(tmp_path):
    profile = made_by_hand()
    profile.trace(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    named = [e for e in data["traceEvents"] if e["ph"] == "M"]
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert len(named) + len(spans) == len(data["traceEvents"])
    assert {e["name"] for e in named} == {"process_name", "thread_name"}
    assert [e["name"] for e in spans] == ["matmul+add", "conv2d", "main_dispatch_1"]
    for e in spans:
        assert set(e) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert e["ts"] >= 0 and e["dur"] > 0
        assert {e["pid"]} == {n["pid"] for n in named}
        assert e["tid"] in {n["tid"] for n in named if n["name"] == "thread_name"}
    # Complete events of one thread must not overlap.
    assert spans[0]["tid"] != spans[1]["tid"] and spans[2]["tid"] == spans[0]["tid"]
    assert spans[0]["dur"] == pytest.approx(2e6)
    assert spans[0]["args"]["code"] == "kernel gemm" and spans[2]["args"]["sources"] == "unknown"
    assert Profile.load(tmp_path / "trace.json") == profile


def test_json_and_back():
    profile = made_by_hand()
    assert from_data(Profile, json.loads(json.dumps(to_data(profile)))) == profile


@pytest.mark.parametrize(
    "data", ["[]", "{}", "no json", '{"pyc": {"schema": 9}}', '{"pyc": {"schema": 1, "rows": 3}}']
)
def test_what_is_no_profile_is_refused(tmp_path, data):
    (tmp_path / "p.json").write_text(data)
    with pytest.raises(PycError, match=r"p\.json") as caught:
        Profile.load(tmp_path / "p.json")
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    assert KEY == "pyc"
