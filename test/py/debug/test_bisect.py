"""Bisecting compiles: an injected bad decision is found, by each kind of check."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import wrong_kernels
from conftest import ALL_CASES
from refusals import refused

from pyc_mlir import PycError, ReasonCode, Recipe, TensorSpec, nn
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.compile_log import CompileLog, read_compile_log
from pyc_mlir.compilation.options import make_options
from pyc_mlir.debug import bisect as bisection
from pyc_mlir.debug.bisect import Check, LatencyCheck, bisect, command_check, error_check
from pyc_mlir.debug.replay import replay_options
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.tools import pyc_explain

SPECS = [TensorSpec(np.dtype(np.float32), 4, 16), TensorSpec(np.dtype(np.float32), 16, 16)]
LAYERS, MANY_LAYERS = 4, 100


def layers(x, w):
    for _ in range(LAYERS):
        x = nn.softmax(np.tanh(x @ w))
    return x


@dataclass(frozen=True)
class Other:
    """Prefers another kernel wherever there is one, and the wrong one at a place."""

    place: int
    name: str = "other"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        names = [a.name for a in alternatives]
        wrong = next((n for n in names if n.startswith(wrong_kernels.NAME)), None)
        if wrong is not None:
            SEEN.append(site.key)
            if len(SEEN) - 1 == self.place:
                return wrong
        return "iree" if "iree" in names and site.pass_name != "plan-memory" else names[0]


SEEN: list[str] = []


def wrong_site(program: CompileLog) -> str:
    """The one site where the wrong alternative was taken."""
    (site,) = (d.site.key for d in program.decisions if d.chosen.startswith(wrong_kernels.NAME))
    return site


def wide(x, w):
    """As many, side by side: what one of them gets wrong is not lost on the way."""
    return sum(nn.softmax(np.tanh((x * float(n)) @ w)) for n in range(1, MANY_LAYERS + 1))


def recorded(folder: Path, name: str, policy: Other | None, source=layers) -> CompileLog:
    """A program of `layers` by a policy, in a file."""
    SEEN.clear()
    made = build(source, SPECS, make_options(policy=policy))
    artifacts.write(made, folder / name)
    return read_compile_log(folder / name)


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Iterator[tuple[CompileLog, CompileLog]]:
    """A good program and a bad one, which differ in more than the bad decision."""
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        wrong_kernels.register(patch)
        bad = Other(LAYERS // 2)
        yield recorded(folder, "good.vmfb", None), recorded(folder, "bad.vmfb", bad)


def culprit_of(logs: tuple[CompileLog, CompileLog], check: Check) -> bisection.Bisection:
    return bisect(layers, SPECS, *logs, replay_options(logs[1]), check)


@pytest.mark.full
def test_a_wrong_decision_is_found_by_its_error(logs):
    options = replay_options(logs[1])
    found = culprit_of(logs, error_check(layers, SPECS, options))
    site = wrong_site(logs[1])
    assert found.culprits.changes == (site,)
    assert found.bad[site].chosen.startswith("wrong:")
    assert not found.good[site].chosen.startswith("wrong:")
    assert found.differing >= LAYERS and found.culprits.tests <= 7


@pytest.mark.skipif(not ALL_CASES, reason="a dozen large compiles")
def test_twelve_programs_do_for_two_hundred_decisions(tmp_path, monkeypatch, record_property):
    wrong_kernels.register(monkeypatch)
    good = recorded(tmp_path, "good.vmfb", None, wide)
    bad = recorded(tmp_path, "bad.vmfb", Other(MANY_LAYERS // 3), wide)
    check = error_check(wide, SPECS, replay_options(bad))
    found = bisect(wide, SPECS, good, bad, replay_options(bad), check)
    counts = {"decisions that differ": found.differing, "replays": found.culprits.tests}
    record_property("bisect to one bad decision", counts)
    assert found.culprits.changes == (wrong_site(bad),)
    assert found.differing >= 200 and found.culprits.tests <= 12


def test_a_command_finds_it_too(logs, tmp_path, monkeypatch, capsys):
    """The script tells by the log in the program; through the command line."""
    script = "import sys, zipfile\nlog = zipfile.ZipFile(sys.argv[1]).read('pyc/decisions.jsonl')\n"
    (tmp_path / "check.py").write_text(f'{script}sys.exit(b\'"chosen": "wrong:\' in log)\n')
    (tmp_path / "m.py").write_text(
        "import numpy as np\nfrom pyc_mlir import nn\n\n\ndef layers(x, w):\n"
        f"    for _ in range({LAYERS}):\n        x = nn.softmax(np.tanh(x @ w))\n    return x\n"
    )
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'check.py'))} {{}}"
    line = ["--bisect", logs[0].name, logs[1].name, f"{tmp_path / 'm.py'}:layers"]
    assert pyc_explain.main([*line, "--check", command]) == 0
    out = capsys.readouterr().out
    assert wrong_site(logs[1]) in out and "wrong:" in out and "good:" in out


@pytest.mark.full
def test_latency_is_measured_at_the_ends_first(logs):
    seconds = {True: 2.0, False: 1.0}

    def measure(artifact: Artifact) -> float:
        return seconds[any(d.chosen.startswith("wrong:") for d in artifact.decisions)]

    assert culprit_of(logs, LatencyCheck(measure)).culprits.changes == (wrong_site(logs[1]),)
    with pytest.raises(PycError, match=r"at least 1\.1 times as slow"):
        culprit_of(logs, LatencyCheck(lambda artifact: 1.0))


def test_programs_are_measured(logs):
    assert logs[0].artifact is not None
    assert 0 < bisection.median_seconds(logs[0].artifact) < 1


@pytest.mark.parametrize("answer, wanted", [(True, "good program"), (False, "bad program")])
def test_a_check_that_tells_nothing_is_refused(logs, answer, wanted):
    error = refused(
        ReasonCode.BAD_ARGUMENT,
        culprit_of,
        logs,
        lambda artifact: answer,
        match=f"expected a {wanted}",
    )
    assert "what else differs" not in error.message


def test_conditions_that_differ_are_named(logs):
    """Choices are mixed under those of the bad log, so none of them brings the good program."""
    good, bad = logs
    other = replace(good, conditions={**good.conditions, "options": {"kernels": "iree"}})
    with pytest.raises(PycError, match=r"what else differs: options\.also_modes, .*kernels"):
        culprit_of((other, bad), lambda artifact: True)


def test_equal_logs_are_refused(logs):
    with pytest.raises(PycError, match="logs that differ"):
        culprit_of((logs[0], logs[0]), lambda artifact: True)


def test_choices_that_vanish_are_tolerated():
    recipe = Recipe({"pyc-fuse:gone": "keep"}, tolerant=True)
    made = build(layers, SPECS, make_options(recipe=recipe, kernels="iree"))
    assert all(d.decided_by != "recipe" for d in made.decisions)
    with pytest.raises(PycError, match="RECIPE_MISMATCH"):
        build(layers, SPECS, make_options(recipe=replace(recipe, tolerant=False), kernels="iree"))


def test_commands_say_good_bad_or_neither():
    artifact = build(
        "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}",
        None,
        make_options(),
    )
    answers = [command_check(f"test -s {{}} && exit {status}")(artifact) for status in (0, 3, 125)]
    assert answers == [False, True, None]
    with pytest.raises(PycError, match="expected a command with"):
        command_check("true")
