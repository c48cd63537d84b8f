"""The demo: the comparison on few images, its text, and its verdict."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from pyc_mlir.measure.environment import Environment
from pyc_mlir.measure.interleave import Spread
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.tools.demo import __main__ as demo
from pyc_mlir.tools.demo import text as demo_text
from pyc_mlir.tools.demo.compare import DemoComparison, DemoMemory, DemoRow, Side, compare
from pyc_mlir.tools.demo.digits import MODELS, DigitImages, load_digits

# Importing it takes 0.8 s, which every process that collects tests would pay.
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="sklearn is not installed")
LABELS = DigitImages(np.zeros((3, 1, 8, 8), np.float32), np.array([0, 1, 2]))


def comparison(scores: np.ndarray) -> DemoComparison:
    """What a comparison that took 1 ms might say; the reference knows every label."""
    spread = Spread(0.001, 0.0009, 0.0011, 0.0008, 5)
    side = Side(spread, DemoMemory(4096, 1024))
    names = (Alternative("fuse:a+b", Cost(traffic_bytes=10)), Alternative("keep", Cost()))
    site = Site("pyc-fuse", "a.1", 'loc("op1"("m.onnx":1:1))')
    chosen = Decision(site, "keep", names, "heuristic")
    plain = (Alternative("plain"), Alternative("other"))
    unknown = Decision(Site("iree-fusion", "m"), "plain", plain, "heuristic")
    forced = Decision(Site("plan-memory", "m"), "iree", plain[:1], "heuristic")
    made = (chosen, unknown, forced, chosen)
    return DemoComparison(scores, np.eye(3), (DemoRow(3, side, side, spread, spread),), made)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(1)
def test_compiled_models_answer_as_the_reference(name):
    _, images = load_digits()
    found = compare(MODELS[name], images.pixels[:20], [20], rounds=1, min_seconds=0)
    assert found.agreeing == 20 and found.max_error < 1e-4
    (row,) = found.rows
    assert row.batch == 20 and row.guarded.n == row.ratio.n == 1
    inputs, results = 20 * 64 * 4, 20 * 10 * 4
    for memory in (row.pyc.memory, row.plain.memory):
        assert memory.peak_bytes >= memory.transient_bytes + inputs + results
        assert memory.transient_bytes > 0
    assert any(d.site.pass_name == "pyc-fuse" for d in found.decisions)


def test_text_says_it_all_within_the_width():
    found = {"mlp": comparison(np.eye(3)), "cnn": comparison(np.eye(3))}
    cpu = Environment("A CPU", 2, (), 4, (), "Linux", "3.11", {}, "0.1", None, False)
    model = Path.cwd() / "models" / "m.onnx"
    text = "".join(
        (
            demo_text.heading(cpu, "3.13"),
            demo_text.accuracy(found, LABELS),
            demo_text.latency_and_memory(found, 5),
            demo_text.decisions(found),
            demo_text.how_to_see_all(model, (3, 1, 8, 8)),
        )
    )
    assert max(map(len, text.splitlines())) <= demo_text.WIDTH
    for part in ("100.00%", "3 of 3", "1 ms", "4 KiB", "op1", "fuse:a+b", "models/m.onnx"):
        assert part in text


def test_saved_traffic_is_counted_against_the_costliest():
    text = demo_text.decisions({"m": comparison(np.eye(3))})
    rows = [line.split() for line in text.splitlines()[2:4]]
    assert rows[0][1:4] == ["2", "x", "op1"] and rows[0][-2:] == ["10", "B"] and rows[1][-1] == "-"
    assert "plan-memory" not in text  # where there was nothing to choose


def test_verdict_needs_the_reference_accuracy(capsys):
    assert demo.verdict({"m": comparison(np.eye(3))}, LABELS) == 0
    assert demo.verdict({"m": comparison(np.eye(3)[::-1])}, LABELS) == 1
    assert "m: expected the accuracy of the reference" in capsys.readouterr().err


def test_bad_command_line(capsys):
    assert demo.main(["--nonsense"]) == 2
    assert "[BAD_ARGUMENT]" in capsys.readouterr().err
