"""pyc-explain in this process: text, page, JSON, and once where no compiler can be imported."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from explain_programs import FUSE, explained, planned, ran, refused, saved
from planner_problems import MIB, branches, chain, layered, skips
from pythons import without_compilers

from pyc_mlir.artifact.artifact import read
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.choices import Site
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.choices.log import write_log
from pyc_mlir.pipelines.memory.planner.layout import layout_of_slices
from pyc_mlir.tools.explain import text_page as explain_text
from pyc_mlir.tools.explain.facts import ExplainedProgram, size
from pyc_mlir.tools.explain.html_page import page
from pyc_mlir.tools.page.svg import Scale

FOLDER = Path(__file__).with_name("golden")
EVIL = """</script><script>alert("1")</script><b a='x'>&amp;\x85"""
ACCOUNT = {
    "constants": 2048,
    "inputs": 3 * MIB,
    "transients": 12 * MIB,
    "outputs": MIB,
    "workspace": 0,
}
GOLDEN = (FOLDER / "overview.txt").read_text()


@pytest.fixture
def program(tmp_path) -> str:
    """A saved program of three branches with its report."""
    return saved(tmp_path, explained([planned(branches(3))], account=ACCOUNT))


def subject(*regions, decisions=(FUSE,), name: str = "model.vmfb") -> ExplainedProgram:
    return ExplainedProgram.of(name, explained(regions, decisions))


class Page(HTMLParser):
    """Checks that tags nest; collects text, tags and attributes."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data

    def having(self, kind: str) -> list[dict[str, str | None]]:
        """Attributes of the tags with a class."""
        return [a for _, a in self.tags if kind in (a.get("class") or "").split()]


def test_text(program, capsys):
    assert ran(capsys, program) == GOLDEN


def test_text_of_a_program_without_a_report(tmp_path, capsys):
    out = ran(capsys, saved(tmp_path, explained()))
    assert re.search(r"constants +2\.00\n", out) and "region" not in out
    assert "IREE planned the memory: the program was compiled with planner mode `iree`" in out
    assert "> fuse:matmul+add  time 2 us, traffic 1.00 MiB; one kernel\n" in out


def test_long_logs_are_cut_but_for_decisions(tmp_path, capsys):
    many = [replace(FUSE, site=Site("pyc-fuse", f"op{i}")) for i in range(20)]
    path = saved(tmp_path, explained(decisions=many))
    out = ran(capsys, path)
    assert "pyc-fuse:op11 " in out and "pyc-fuse:op12 " not in out
    assert "... and 8 more; --decisions shows all" in out
    out = ran(capsys, path, "--decisions")
    assert out.startswith("  pyc-fuse:op0 ") and out.count("(by heuristic)") == 20


def test_decisions_of_an_op(program, tmp_path, capsys):
    out = ran(capsys, program, "--op", "matmul")
    assert out.startswith("  pyc-fuse:matmul.0123") and "plan-memory" not in out
    assert "expected part of a site or location" in refused(capsys, program, "--op", "nothing")
    placed = replace(FUSE, site=Site("pyc-fuse", "matmul.0123", 'loc("dense"("m.onnx":1:1))'))
    write_log([placed], tmp_path / "log.jsonl")
    out = ran(capsys, program, "--op", "dense", "--log", str(tmp_path / "log.jsonl"))
    assert out.startswith(
        '  dense  pyc-fuse:matmul.0123  at loc("dense"("m.onnx":1:1))  (by heuristic)'
    )


def test_json_holds_everything(program, tmp_path, capsys):
    data = json.loads(ran(capsys, program, "--json", "-"))
    assert data["manifest"]["memory"] == ACCOUNT
    assert [d["chosen"] for d in data["decisions"]] == ["fuse:matmul+add", "planned"]
    assert data["memory"] == json.loads(read(program).memory)
    ran(capsys, saved(tmp_path, explained(), "b.vmfb"), "--json", str(tmp_path / "b.json"))
    assert json.loads((tmp_path / "b.json").read_text())["memory"] is None


def test_wrong_use(program, tmp_path, capsys):
    assert "No such file" in refused(capsys, str(tmp_path / "none.vmfb"))
    assert "got both" in refused(capsys, program, "--html", "-", "--json", "-")
    (tmp_path / "no.vmfb").write_bytes(b"nothing")
    assert "[BAD_ARGUMENT]" in refused(capsys, str(tmp_path / "no.vmfb"))
    damaged = replace(explained([planned(chain(3))]), memory=b"{}")
    message = refused(capsys, saved(tmp_path, damaged, "damaged.vmfb"))
    assert message.startswith("pyc-explain: error: damaged.vmfb: expected a memory report")


def test_terminals_without_unicode():
    text = explain_text.overview(subject(planned(branches(3), "ä#0")), explain_text.ASCII)
    assert text.isascii() and "###" in text and "16.00 MiB -> 12.00 MiB" in text
    assert r"region \xe4#0" in text


def test_a_plan_that_was_turned_down():
    region = planned(skips())
    kept = replace(region, chosen="iree")
    text = explain_text.overview(subject(kept))
    assert "runs with    iree (decided by" in text
    assert "turned down: planned" in text and "runs: iree" in text
    shown = Page(page(subject(kept))).text
    assert "turned down: planned" in shown and "as much as IREE's own plan" in shown


def test_regions_are_named_by_op_or_site():
    for name in ("g#0", "plan-memory:g#0"):
        region = planned(chain(3), name)
        decision = replace(FUSE, site=Site("plan-memory", "g#0"), evidence=(Note("said"),))
        text = explain_text.overview(subject(region, decisions=(decision,)))
        assert "planned (decided by: heuristic); " in text
        assert "holds no decision" not in text


def test_plans_of_several_modes():
    region = planned(skips(6, MIB))
    more = {"latency_first": region.layouts["iree"], "memory_first": region.layouts["planned"]}
    several = replace(region, layouts={**region.layouts, **more})
    text = explain_text.overview(subject(several))
    assert "turned down  latency_first 2.25 MiB in 36 ms, memory_first 1.50 MiB in 37 ms" in text
    assert text.count("live memory over steps") == 2
    found = Page(page(subject(several)))
    assert "2 more that were turned down" in found.text
    assert len(found.having("arena")) == 4 and len(found.having("live")) == 1
    assert "before: iree" in found.text and "after: planned" in found.text


def test_slices_and_regions_without_layouts():
    bare = replace(planned(chain(4)), layouts={"iree": layout_of_slices([(0, 2, 64)], [0])})
    none = replace(planned(chain(4), "g#1"), layouts={}, frontier=(), chosen="iree")
    both = subject(replace(bare, chosen="iree"), none)
    text = explain_text.overview(both)
    assert (
        "64 B" in text and "plan of region g#1\n  runs with  iree (decided by: heuristic)" in text
    )
    assert "slice 0" in page(both)


def test_page_is_well_formed_and_whole(program, tmp_path, capsys):
    assert ran(capsys, program, "--html", str(tmp_path / "r.html")) == GOLDEN
    text = (tmp_path / "r.html").read_text("utf-8")
    assert text == ran(capsys, program, "--html", "-")
    found = Page(text)
    pictures = re.findall("<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) > 4 and all(ElementTree.fromstring(p) is not None for p in pictures)
    assert "default-src 'none'" in text
    assert set(re.findall(r"\w+://[^\s\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not [t for t, a in found.tags if {"src", "srcset"} & set(a) or t in ("link", "iframe")]
    assert {a["href"] for t, a in found.tags if t == "a"} == {"#g#0"}
    for output_text in (
        "12.00 MiB",
        "fuse:matmul+add",
        "keep",
        "one kernel",
        "2 us",
    ):
        assert output_text in found.text


@pytest.mark.full
def test_page_draws_every_buffer_and_marks_them():
    region = planned(layered(60, 0))
    after = region.layouts["planned"]
    again = sum(r.recomputed for r in after.rectangles)
    taken = sum(r.takes_over is not None and not r.recomputed for r in after.rectangles)
    assert again and taken
    found = Page(page(subject(region)))
    keys = 1  # the legend's own mark
    buffers = sum(len(layout.rectangles) for layout in region.layouts.values())
    assert len(found.having("b")) == buffers + 3 * keys
    assert len([a for a in found.having("again") if "x" in a and "b" in str(a["class"]).split()])
    assert len(found.having("again")) - len(found.having("name")) <= again + keys
    widths = [float(a["width"] or 0) for a in found.having("b")]
    assert min(widths) > 0
    said = re.findall(r"after: (\S+ \S+) while (.*)", found.text)
    assert [text for text, _ in said] == [size(live) for live in after.live_bytes]
    assert sum("(recomputed)" in runs for _, runs in said) == again
    assert len(found.having("point")) == len(region.frontier)


def test_names_are_escaped():
    region = planned(chain(4), EVIL)
    tasks = tuple(replace(t, name=EVIL) for t in region.tasks)
    layouts = {
        name: replace(x, rectangles=tuple(replace(r, buffer=EVIL) for r in x.rectangles))
        for name, x in region.layouts.items()
    }
    evil = replace(FUSE, site=Site(EVIL, EVIL, EVIL), evidence=(Note(EVIL),), decided_by=EVIL)
    text = page(
        subject(replace(region, tasks=tasks, layouts=layouts), decisions=(evil,), name=EVIL)
    )
    found = Page(text)
    assert "<script" not in text and "<b a=" not in text
    assert found.text.count('<script>alert("1")</script>') > 10


def test_two_thousand_buffers_stay_readable():
    slices = [(i // 3, i // 3 + 5, 64 * (1 + i % 7)) for i in range(2000)]
    offsets = [64 * (i * 5 % 211) for i in range(2000)]
    layout = layout_of_slices(slices, offsets)
    region = replace(planned(chain(4)), layouts={"iree": layout}, chosen="iree")
    text = page(subject(region))
    found = Page(text)
    assert len(found.having("b")) == 2001 and len(text) < 2_000_000
    assert len(found.having("step")) < 40
    lines = explain_text.overview(subject(region)).splitlines()
    assert max(len(line) for line in lines) < 110


def test_ticks_are_round():
    assert Scale(0, 23, 0, 100).ticks(14, whole=True) == [2.0 * i for i in range(12)]
    assert Scale(0, 3, 0, 100).ticks(14, whole=True) == [0, 1, 2, 3]
    assert Scale(0, 36 * MIB, 0, 1, MIB).ticks(4) == [0, 10 * MIB, 20 * MIB, 30 * MIB]
    assert Scale(5.0, 5.0, 0, 1).ticks(4) != []


def test_explaining_needs_no_compiler(program):
    assert "region g#0" in without_compilers("pyc_explain", program)


def test_a_prediction_says_that_it_is_one_and_on_what_it_rests():
    shown = subject(planned(chain(3)))
    made = Prediction(2e-3, basis="published figures of `cpu`")
    reported = replace(shown, artifact=shown.artifact.noted(prediction=made))
    (prediction,) = (t for n, t in reported.facts() if n == "time")
    assert prediction == (
        "2 ms a call predicted for 1 thread; modelled by published figures of `cpu`"
    )
