"""pyc-explain of logs: ops, reason codes, and what differs between two compiles."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from explain_programs import FUSE, explained, planned, ran, refused, saved
from planner_problems import branches

from pyc_mlir import Contract, ReasonCode
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.compile_log import CompileLog, head_of, read_compile_log
from pyc_mlir.debug.diff import ProgramDifference, diff
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.choices.contract import ClauseReport, ContractReport, Status
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.choices.log import CACHE, Event, Reason, write_log
from pyc_mlir.tools import pyc_explain

CODE = ReasonCode.CODEGEN_FALLBACK
FUSION = Decision(
    Site("iree-fusion", "0123456789abcdef"),
    "plain",
    (Alternative("aggressive"), Alternative("plain")),
    "fallback",
    grounds=(Reason(CODE.name, "aggressive: stack"),),
)
CACHED = Event(CACHE, "none", "miss", reasons=(Reason(ReasonCode.CACHE_MISS.name, "new"),))


@pytest.fixture
def program(tmp_path) -> str:
    clause = ClauseReport("fallbacks", ("none",), Status.CHECKED, code=CODE.name)
    made = explained([planned(branches(3))], [FUSE, FUSION])
    requested = Contract(fallbacks=("none",))
    return saved(
        tmp_path, made.noted(contract=requested, contract_report=ContractReport((clause,)))
    )


@pytest.fixture
def log(program: str) -> str:
    """The program's log, with locations and what the cache did."""
    made = artifacts.read(program)
    located = [replace(d, site=replace(d.site, location="here")) for d in made.decisions]
    path = str(Path(program).with_name("log.jsonl"))
    write_log([head_of(made, Path(program).read_bytes()), *located, CACHED], path)
    return path


def test_a_log_is_explained_without_its_program(capsys, log):
    out = ran(capsys, log)
    assert "pyc-fuse:matmul.0123  at here" in out and "iree-fusion" in out and "miss" in out
    assert "compile:" not in out
    assert "expected a program for --html" in refused(capsys, log, "--html", "-")


@pytest.mark.parametrize(
    "name, sites",
    [
        ("matmul.0123", ["pyc-fuse:matmul.0123"]),
        ("pyc.matmul", ["pyc-fuse:matmul.0123"]),
        ("add", ["pyc-fuse:matmul.0123"]),
        ("iree-fusion", ["iree-fusion:0123456789abcdef"]),
    ],
)
def test_decisions_about_an_op(capsys, log, program, name, sites):
    for path in (program, log):
        out = ran(capsys, path, "--op", name)
        assert [line.split()[0] for line in out.splitlines() if line[2] != " "] == sites


def test_decisions_about_a_dispatch(capsys, program):
    region = pyc_explain.ExplainedProgram.of("x", artifacts.read(program)).report.regions[0]
    out = ran(capsys, program, "--op", region.tasks[0].name)
    assert "plan-memory:g#0" in out


def test_parts_of_words_are_no_ops(capsys, log):
    assert "expected part of a site" in refused(capsys, log, "--op", "dd")


def test_why_names_each_place(capsys, program, log):
    out = ran(capsys, program, "--why", CODE.name)
    assert out.startswith(f"{CODE.name}: {CODE.value.meaning}\n  remedy: {CODE.value.remedy}\n")
    assert "iree-fusion:0123456789abcdef: plain (by fallback)" in out
    assert "aggressive: stack" in out and "contract: fallbacks" in out
    assert "cache:none: miss" in ran(capsys, log, "--why", "cache_miss")
    assert "does not occur in" in ran(capsys, log, "--why", "WRONG_RESULT")


def test_an_unknown_code_is_refused_with_a_near_one(capsys, program):
    assert "CODEGEN_FALLBACK" in refused(capsys, program, "--why", "CODEGEN_FALBACK")


@pytest.mark.parametrize(
    "line",
    ["", "--diff a b c", "--bisect a b m", "x --bisect a b --by error --check y", "--diff a"],
)
def test_flags_that_do_not_fit(capsys, line):
    assert "BAD_ARGUMENT" in refused(capsys, *line.split())


# Differences.


def recorded(*decisions: Decision, **conditions: Any) -> CompileLog:
    return CompileLog("log", {"graph_id": "g", **conditions}, decisions)


def choice(site: str, chosen: str, by: str = "heuristic", **more: Any) -> Decision:
    pass_name, _, op = site.partition(":")
    offered = more.pop("alternatives", (Alternative("a"), Alternative("b")))
    return Decision(Site(pass_name, op), chosen, offered, by, **more)


def test_equal_logs_do_not_differ(capsys, program, log):
    both = read_compile_log(program), read_compile_log(log)
    assert diff(*both).is_empty and diff(*both).same == 3
    assert ran(capsys, "--diff", program, log) == "no difference: 3 equal decisions\n"


def test_a_change_has_its_reasons():
    before = choice("p:x", "a", evidence=(Note("old"),))
    after = choice(
        "p:x",
        "b",
        "tuned",
        evidence=(Note("new"),),
        alternatives=(Alternative("b", FUSE.alternatives[0].cost), Alternative("c")),
    )
    (change,) = diff(recorded(before), recorded(after)).changes
    assert (change.before, change.after) == (before, after)
    assert change.why == (
        "decided by: heuristic -> tuned",
        "a: is not offered any more",
        "b: seconds absent -> 2e-06",
        "b: workspace_bytes absent -> 0",
        "b: constant_bytes absent -> 0",
        "b: traffic_bytes absent -> 1048576",
        "b: flops absent -> 0",
        "c: was not offered before",
        "evidence before: old",
        "evidence now: new",
    )


def test_what_only_one_has_and_what_stays_on_other_grounds():
    a = recorded(choice("p:x", "a"), choice("p:y", "a", evidence=(Note("seen"),)))
    b = recorded(choice("p:y", "a"), choice("q:z", "b"))
    found = diff(a, b)
    assert [(c.site, c.before is None) for c in found.changes] == [("q:z", True), ("p:x", False)]
    assert [c.site for c in found.restated] == ["p:y"] and found.same == 1


def test_conditions_are_told_one_by_one():
    a = recorded(contract={"max_error": None, "fallbacks": []}, target="cpu")
    b = recorded(contract={"max_error": 0.1, "fallbacks": []}, target="cpu-avx2")
    assert diff(a, b).conditions == (
        ("contract.max_error", None, 0.1),
        ("target", "cpu", "cpu-avx2"),
    )


def test_sites_of_other_programs_are_joined_by_order():
    a = recorded(*(choice(f"p:add.{i:016x}", "a") for i in (1, 2)), choice("q:" + "1" * 16, "a"))
    b = recorded(
        *(choice(f"p:add.{i:016x}", "ab"[i % 2]) for i in (3, 4)),
        choice("q:" + "2" * 16, "a"),
        graph_id="h",
    )
    found: ProgramDifference = diff(a, b)
    assert found.same == 2
    assert [(c.before and c.before.site.op_id, c.site) for c in found.changes] == [
        (f"add.{1:016x}", f"p:add.{3:016x}")
    ]


def test_sizes_stand_beside(capsys, tmp_path, program):
    other = explained([planned(branches(5))], [FUSE], account=None)
    path = saved(tmp_path, replace(other, vmfb=other.vmfb), "other.vmfb")
    out = ran(capsys, "--diff", program, path, "--decisions")
    assert "iree-fusion:0123456789abcdef\n    plain -> not decided" in out
    assert "the same choice on other grounds" in out
