"""One account of memory: every tool and promise shows the same bytes of one program."""

import numpy as np
import pytest
from stream_programs import branches

from pyc_mlir import Contract, Device, Program, TensorSpec, compile, nn
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.tools import pyc_run
from pyc_mlir.tools.cli.compile_driver import summary
from pyc_mlir.tools.explain.facts import ExplainedProgram, in_table
from pyc_mlir.tools.explain.html_page import page
from pyc_mlir.tools.explain.text_page import overview

RNG = np.random.default_rng(0)
W, B = RNG.normal(size=(784, 10)).astype(np.float32), np.zeros(10, np.float32)
TWO = Device("local-task", threads=2)


def model(x):
    """README's first model."""
    return nn.softmax(np.maximum(x @ W + B, 0))


def classifier(**options) -> Program:
    return compile(model, [TensorSpec("f32", 2, 784)], device=TWO, **options)


def explained(program: Program, *sizes: str) -> ExplainedProgram:
    artifact = artifacts.from_bytes(artifacts.to_bytes(program.artifact))
    return ExplainedProgram.of("m.vmfb", artifact, sizes=sizes)


def test_every_tool_shows_one_account():
    budget = Contract(memory_budget_bytes=1 << 20)
    program = classifier(contract=budget)
    line = program.stats().memory.described()
    assert line.startswith("55.3 KiB: constants 49 KiB, inputs 6.12 KiB, ")
    for shown in (
        summary("m.vmfb", 1, program.artifact, 0.0),
        pyc_run.statistics(program.stats(), program),
        repr(program.artifact),
        repr(program.stats()),
        program._repr_html_(),
        str(program.stats().contract),
    ):
        assert line in shown
    unit, rows = in_table(explained(program).account())
    assert unit == "KiB" and dict(rows)["constants"] == "49.00" and dict(rows)["total"] == "55.33"


def test_statistics_are_those_of_the_call():
    program = compile(model, [TensorSpec("f32", "batch", 784)], device=TWO)
    assert "by the sizes of a call" in pyc_run.statistics(program.stats(), program)
    shown = pyc_run.statistics(program.stats(), program, [np.zeros((4, 784), np.float32)])
    assert "inputs 12.2 KiB" in shown and "; for batch=4\n" in shown


def test_constants_are_as_resident():
    """They were 30.6 KiB in some tools, as the model has them, and 49 KiB in others."""
    program = classifier()
    packed = 784 * 16 * 4
    assert program.stats().memory.constants == packed
    assert program.artifact.reference.constants == W.nbytes
    head = summary("m.vmfb", 1, program.artifact, 0.0).splitlines()[0]
    assert "49 KiB of it constants" in head


def test_statistics_tell_no_peak_that_leaves_out_most_of_a_call():
    """The pool of local-task is in no statistic: 1,024 B were told of a call of 5.5 MiB."""
    program = classifier()
    program(np.zeros((2, 784), np.float32))
    assert "peak" not in pyc_run.statistics(program.stats(), program)
    sync = Program(program.artifact, Device("local-sync"))
    assert "at the peak" in pyc_run.statistics(sync.stats(), sync)


def test_the_headline_is_the_account():
    """README's model was told to need nothing, and 100 % less than by IREE's plan."""
    program = compile(model, [TensorSpec("f32", None, 784)])
    text = overview(explained(program))
    assert "the memory of a call depends on x[0]; --size x[0]=8 shows it" in text
    at = explained(program, "x[0]=2")
    assert dict(at.account())["total"] == at.memory()[0] == 56656
    ranged = compile(model, [TensorSpec("f32", "n", 784)], dims={"n": (1, 2)})
    assert explained(ranged).memory()[0] == ranged.artifact.account.total() == 56656
    for n in (1, 2):
        smaller = explained(ranged, f"n={n}").memory()[0]
        assert smaller is not None and smaller <= 56656


def test_a_program_without_plans_says_why():
    """The remedy was to compile it with a planner mode, which changed nothing."""
    planned, left = classifier(), classifier(planner_mode="iree")
    for program, why in ((planned, "no buffers to plan"), (left, "planner mode `iree`")):
        subject = explained(program)
        assert why in overview(subject) and why in page(subject).replace("&#x27;", "'")


@pytest.mark.parametrize("regions", [1, 2])
def test_arenas_of_regions_are_parts_of_the_account(regions):
    """One report told three arenas of one program, one of them 1164 % above IREE's."""
    program = compile(branches(2, regions=regions).code.decode(), device=Device("local-sync"))
    subject = explained(program)
    account, by_iree = program.artifact.account, program.artifact.reference
    assert dict(subject.account())["transients (the arena)"] == account.transients
    arenas = [s.region.after.arena_bytes for s in subject.regions() if s.region.after]
    assert account.scratch is not None and max(arenas) <= account.scratch <= sum(arenas) + 64
    assert subject.memory() == (account.total(), by_iree.total())
    mine, theirs = subject.memory()
    assert mine is not None and theirs is not None and mine <= theirs
