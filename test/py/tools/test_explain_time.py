"""pyc-explain: where the time goes, predicted or measured, and what no kernel covers."""

import json
from dataclasses import replace

from explain_programs import ran, refused
from profiled import X, artifact_of, made_by_hand

from pyc_mlir import Device, Program
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.tools.explain.facts import ExplainedProgram
from pyc_mlir.tools.explain.html_page import page
from pyc_mlir.tools.explain.text_page import overview
from pyc_mlir.tools.explain.time_shares import HEAD, answer, longest, not_covered, rows_of


def saved(folder) -> str:
    artifacts.write(artifact_of(), folder / "p.vmfb")
    return str(folder / "p.vmfb")


def test_the_longest_operations_and_what_no_kernel_covers():
    by_hand = made_by_hand()
    again = replace(by_hand.rows[1], dispatch="main_dispatch_9", seconds=0.5, share=0.05)
    profile = replace(by_hand, rows=(*by_hand.rows, again))
    rows = rows_of(longest(profile))
    assert rows[0] == ("65.0%", "6.5 s", "2", "conv2d", "", "IREE's code")
    assert rows[1][3:] == ("matmul+add", "dense <1>", "kernel gemm")
    assert all(len(row) == len(HEAD) for row in rows)
    assert [(o.title, len(o.rows)) for o in not_covered(profile)] == [("conv2d", 2), ("unknown", 1)]
    assert answer(by_hand).endswith("outside of dispatches. Measured by hand.")


def test_a_prediction_is_called_one(tmp_path, capsys):
    text = ran(capsys, saved(tmp_path))
    time = text.partition("time of a call, predicted\n")[2].partition("decisions by")[0]
    assert "(predicted, not measured)" in time and "published figures of `cpu`" in time
    (row,) = (line for line in time.splitlines() if " div " in line and "IREE's code" in line)
    assert row.split()[0].endswith("%") and "profiled.py:" in row


def test_a_measurement_takes_its_place(tmp_path, capsys):
    program = saved(tmp_path)
    profile = Program(artifact_of(), Device("local-sync")).profile(X, calls=1)
    trace, html = str(tmp_path / "t.json"), str(tmp_path / "r.html")
    profile.trace(trace)
    text = ran(capsys, program, "--profile", trace, "--html", html)
    assert "(measured)" in text and "Measured on local-sync, 1 thread" in text
    assert "time of a call, measured\n" in text and "predicted, not" not in text
    shown = (tmp_path / "r.html").read_text()
    assert "Time of one call" in shown and "Every operation, measured" in shown
    assert "kernel gemm" in shown
    data = json.loads(ran(capsys, program, "--profile", trace, "--json", "-"))
    assert data["time"] == json.loads(json.dumps(to_data(profile)))


def test_a_log_tells_where(tmp_path, capsys):
    profile = Program(artifact_of(), Device("local-sync")).profile(X, calls=1)
    bare = tuple(replace(d, site=replace(d.site, location="")) for d in artifact_of().decisions)
    subject = ExplainedProgram.of(
        "p", replace(artifact_of(), decisions=bare), artifact_of().decisions
    )
    assert subject.profile is not None and any(r.locations for r in subject.profile.rows)
    assert "profiled.py:" in overview(
        ExplainedProgram.of("p", artifact_of(), None, measured=profile)
    )


def test_profiles_of_other_programs_are_refused(tmp_path, capsys):
    made_by_hand().trace(tmp_path / "other.json")
    reported = refused(capsys, saved(tmp_path), "--profile", str(tmp_path / "other.json"))
    assert "got one of graph abcd" in reported and "[BAD_ARGUMENT]" in reported
    (tmp_path / "m.onnx").write_bytes(b"")
    reported = refused(capsys, str(tmp_path / "m.onnx"), "--profile", str(tmp_path / "other.json"))
    assert "expected a program for --profile" in reported


def test_programs_without_a_report_have_no_times():
    subject = ExplainedProgram.of("p", replace(artifact_of(), memory=b""))
    assert subject.profile is None
    assert "A call takes" not in overview(subject) and "Time of one call" not in page(subject)
