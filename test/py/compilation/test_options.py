"""Each option is spelled once: a field of `CompileOptions`, from which all else derives."""

import inspect
import json
import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from stream_programs import LOOP
from wisdoms import reversed_wisdom

import pyc_mlir
from pyc_mlir import CompileOptions, Contract, Device, PycError, Target, nn
from pyc_mlir.api import build, notices
from pyc_mlir.artifact.manifest import ReplayOptions
from pyc_mlir.compilation.options import (
    HIGH_LEVEL,
    CompileOverrides,
    Options,
    make_options,
    passes_of,
    resolve,
    texts,
)
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.pipelines.choices.choices import FirstIsBest
from pyc_mlir.pipelines.choices.log import Event, events_of, read_log
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.driver.registry import PASSES
from pyc_mlir.tools import pyc_compile
from pyc_mlir.tools.cli.contract_flags import read_contract
from pyc_mlir.tools.cli.option_flags import read_options

NAMES = [f.name for f in fields(CompileOptions)]
# A value of each option that is not its default.
CHANGED: dict[str, Any] = {
    "target": "cpu-avx2",
    "contract": Contract(memory_budget_bytes=1 << 20, allowed_targets=("cpu-avx2",)),
    "policy": "memory_first",
    "planner_mode": "balanced",
    "also_modes": ("memory_first", "latency_first"),
    "kernels": "rows+gemv",
    "calibration": Path("figures.json"),
    "wisdom": "wisdom.json",
    "require_evidence": True,
    "recipe": "log.jsonl",
    "check": True,
    "dims": {"batch": (1, 64)},
    "plans": "batch=1;batch=2:8",
    "shapes": "trace.csv",
    "node_names": True,
    "islands": True,
    "function": "score",
    "outputs": ("score",),
    "guard_indices": False,
    "passes": "pyc-canonicalize,default",
    "dump_phases": "phases",
    "iree_flags": ("--iree-opt-level=O2",),
}
SYNC = Device("local-sync")
X = np.ones((2, 4), np.float32)


def double(x):
    return nn.relu(x * 2.0)


def test_every_option_has_a_text_and_a_value_here():
    assert list(CHANGED) == NAMES, "a new option needs a value in this test"
    assert all(text.text for text in texts().values())
    for name, value in CHANGED.items():
        assert value != getattr(CompileOptions(), name)


def test_overrides_are_the_options():
    assert get_type_hints(CompileOverrides) == get_type_hints(CompileOptions)


@pytest.mark.parametrize("function", [pyc_mlir.compile, pyc_mlir.jit, CompileOptions])
def test_signatures_and_documentation_derive(function):
    parameters = inspect.signature(function).parameters
    for name in NAMES:
        assert parameters[name].default == getattr(CompileOptions(), name)
        assert f"    {name}: {texts()[name].text[:20]}" in (function.__doc__ or "")


def test_data_and_back():
    for given in (CompileOptions(), CompileOptions(**CHANGED)):
        data = json.loads(json.dumps(given.to_data()))
        # A path becomes its text, which names the same file.
        plain = {f.name: getattr(given, f.name) for f in fields(CompileOptions)}
        plain["calibration"] = None if given.calibration is None else str(given.calibration)
        assert CompileOptions.from_data(data) == CompileOptions(**plain)
    assert CompileOptions().to_data() == {}
    own = CompileOptions(target=Target.named("cuda"))
    assert CompileOptions.from_data(own.to_data()) == own


def test_a_policy_object_is_no_data():
    class Plain:
        name = "plain"

        def prefer(self, site, alternatives):
            return alternatives[0].name

    for policy in (Plain(), FirstIsBest()):
        with pytest.raises(ValueError, match="policy: expected the name of one"):
            CompileOptions(policy=policy).to_data()
    with pytest.raises(ValueError, match="policy: expected"):
        CompileOptions.from_data({"policy": {"name": "heuristic"}})


@pytest.mark.parametrize("data", [{"kernls": "all"}, {"kernels": 3}, {"dims": {"n": [1]}}, []])
def test_other_data_is_refused(data):
    with pytest.raises(ValueError, match="compile options"):
        CompileOptions.from_data(data)


ODD: dict[str, Any] = dict.fromkeys(NAMES, 3) | {
    "iree_flags": [3],
    "dims": [("n", 1)],
    "plans": 1.5,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_another_type_is_refused(name):
    with pytest.raises(PycError, match=f"{name}: expected .*, got .* of type") as caught:
        CompileOptions(**{name: ODD[name]})
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_sequences_are_kept_as_tuples():
    given = CompileOptions(also_modes="memory_first", iree_flags=["--a", "--b"])
    assert (given.also_modes, given.iree_flags) == (("memory_first",), ("--a", "--b"))


def test_unknown_options_are_named():
    with pytest.raises(TypeError, match="'kernls'; did you mean 'kernels'"):
        pyc_mlir.compile(double, [X], kernls="iree")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="inputs"):
        pyc_mlir.jit(inputs=[X])  # type: ignore[call-overload]
    with pytest.raises(PycError, match="options: expected CompileOptions or None"):
        pyc_mlir.compile(double, [X], "cpu")  # type: ignore[arg-type]


def test_overrides_win_over_options():
    options = CompileOptions(planner_mode="iree", kernels="iree")
    program = pyc_mlir.compile(double, [X], options, device=SYNC, planner_mode="memory_first")
    recorded = program.artifact.manifest.options
    assert recorded.planner_modes == ("memory_first",) and recorded.kernels == "iree"
    np.testing.assert_array_equal(program(X), X * 2)


def test_jit_takes_options():
    seen = pyc_mlir.jit(options=CompileOptions(kernels="iree"), device=SYNC, planner_mode="iree")
    np.testing.assert_array_equal(seen(double)(X), X * 2)
    with pytest.raises(PycError, match="kernels: expected str"):
        pyc_mlir.jit(kernels=3)  # type: ignore[call-overload]


def test_the_command_line_gives_the_same_options(tmp_path):
    flags = [
        ("--target", "cpu-avx2"), ("--policy", "memory_first"), ("--planner-mode", "balanced"),
        ("--also-mode", "memory_first"), ("--also-mode", "latency_first"),
        ("--kernels", "rows+gemv"), ("--calibration", "figures.json"), ("--recipe", "log.jsonl"),
        ("--dim", "batch=1:64"), ("--dump-phases", "phases"), ("--Xiree=--iree-opt-level=O2",),
        ("--node-names",), ("--islands",), ("--check",), ("--wisdom", "wisdom.json"),
        ("--no-guard-indices",), ("--function", "score"), ("--outputs", "score"),
        ("--plans", "batch=1;batch=2:8"), ("--shapes", "trace.csv"),
        ("--require-evidence",), ("--passes", "pyc-canonicalize,default"),
        ("--memory-budget", "1MiB"), ("--allowed-targets", "cpu-avx2"),
    ]  # fmt: skip
    parser = pyc_compile.make_parser()
    given = parser.parse_args([word for flag in flags for word in flag])
    found = read_options(given, read_contract(given))
    assert found == CompileOptions(**{**CHANGED, "calibration": "figures.json"})
    plain = parser.parse_args([])
    assert read_options(plain, Contract()) == CompileOptions(contract=Contract())
    shown = {word.rstrip(",") for word in parser.format_help().split()}
    assert {text.flag for text in texts().values()} - {""} <= shown


def test_options_of_a_manifest_take_the_place_of_given_ones():
    modes = make_options(
        also_modes=["memory_first", "latency_first"], dims={"b": (2, 8), "a": (1, 4)}
    )
    changed = replace(modes, passes="pyc-canonicalize", parts_for="balanced")
    for options in (make_options(), modes, changed, make_options(planner_mode="iree")):
        recorded = from_data(ReplayOptions, json.loads(json.dumps(to_data(options.replayed))))
        assert resolve(CompileOptions(), recorded) == options
    flags = resolve(CompileOptions(iree_flags=["--a"]), ReplayOptions(iree_flags=("--b",)))
    assert flags.iree_flags == ("--a",)
    with pytest.raises(PycError, match="planner"):
        resolve(CompileOptions(), ReplayOptions(planner_modes=("fast",)))


def test_what_a_manifest_records_of_the_options():
    expected = ReplayOptions(planner_modes=("balanced",))
    assert make_options().replayed == expected
    assert make_options(node_names=True).replayed == replace(expected, node_names=True)
    assert issubclass(Options, ReplayOptions)


@pytest.mark.parametrize(
    ("clause", "text", "value"),
    [
        ("memory_budget_bytes", "64MiB", 64 << 20),
        ("max_compile_seconds", "2min", 120.0),
        ("latency_goal_seconds", "5ms", 0.005),
    ],
)
def test_clauses_take_units(clause, text, value):
    given: dict[str, Any] = {clause: text}
    assert getattr(Contract(**given), clause) == value
    assert Contract(**given) == Contract(**{**given, clause: value})
    with pytest.raises(PycError, match=f"clause `{clause}`: expected a number and one of .*'7 x'"):
        Contract(**{**given, clause: "7 x"})
    assert Contract(memory_budget_bytes="64MiB").memory_budget_bytes == 64 << 20


def test_a_target_without_a_device_names_the_way_to_compile_only(monkeypatch):
    def none(*arguments, **named):
        raise PycError(ReasonCode.DEVICE_UNAVAILABLE, "device `cuda`: expected one, got none")

    monkeypatch.setattr(Device, "default_for", none)
    with pytest.raises(PycError, match=r"pyc-compile MODEL --target cuda-sm_80 -o") as caught:
        pyc_mlir.compile(double, [X], target="cuda")
    assert caught.value.code is ReasonCode.DEVICE_UNAVAILABLE
    assert "`pyc_mlir.api.build`" in caught.value.message
    assert build(double, [X], make_options(target="cuda-sm_80")).vmfb


def test_passes_name_pycs_own_by_one_word():
    assert passes_of("") == passes_of("default") == HIGH_LEVEL
    assert passes_of("a{x=1},default,func.func(cse)") == f"a{{x=1}},{HIGH_LEVEL},func.func(cse)"
    with pytest.raises(PycError) as caught:
        make_options(passes="a(")
    assert caught.value.code is ReasonCode.INVALID_PIPELINE


def test_strict_determinism_takes_no_pass_of_a_plugin(monkeypatch):
    monkeypatch.setitem(PASSES._registered, "their-pass", object)
    strict = Contract(determinism="strict")
    with pytest.raises(PycError, match="the pass `their-pass`"):
        make_options(passes="func.func(their-pass),default", contract=strict)
    assert make_options(passes="default,cse", contract=strict).passes.endswith("cse")


# What a compile leaves out of what was asked: one line with a code, and an event of the log.
ROW = np.ones((8, 64), np.float32)
WIDE = np.ones((512, 512))


def left_out(source, inputs, options: Options) -> tuple[Event, ...]:
    return notices(build(source, inputs, options), options)


def test_further_modes_of_a_program_that_has_no_entry_for_them(caplog):
    options = make_options(also_modes=["memory_first", "latency_first"])
    with caplog.at_level(logging.WARNING, "pyc_mlir"):
        (event,) = left_out(LOOP.decode(), None, options)
    assert (event.name, event.before) == ("also_modes", "memory_first+latency_first")
    (reason,) = event.reasons
    assert reason.code == ReasonCode.NO_ARENA_ENTRY.name and "control flow" in reason.message
    assert [r.getMessage() for r in caplog.records] == [f"{reason.message} [{reason.code}]"]
    assert not left_out(nn.softmax, [ROW], options)


def test_wisdom_without_a_row_that_fits():
    made = build(nn.softmax, [ROW], make_options())
    here, elsewhere = reversed_wisdom(made.decisions), reversed_wisdom(made.decisions, hardware="x")
    assert not left_out(nn.softmax, [ROW], make_options(policy="fastest", wisdom=here))
    assert not left_out(nn.softmax, [ROW], make_options(policy="fastest"))
    for source, wisdom in ((nn.silu, here), (nn.softmax, elsewhere)):
        options = make_options(policy="fastest", wisdom=wisdom)
        (event,) = left_out(source, [ROW], options)
        assert (event.name, event.before) == ("wisdom", wisdom.label)
        assert event.reasons[0].code == ReasonCode.NO_EVIDENCE.name


def test_wisdom_without_rows(caplog):
    with caplog.at_level(logging.WARNING, "pyc_mlir"):
        make_options(policy="fastest", wisdom=Wisdom())
    (told,) = caplog.records
    assert "got a file without any" in told.getMessage() and "NO_EVIDENCE" in told.getMessage()


@pytest.mark.parametrize(
    ("function", "x", "kernels", "told"),
    [
        (lambda x: x @ x, WIDE, "all", True),
        (lambda x: x @ x, WIDE, "iree", False),  # as asked
        (lambda x: x @ x, WIDE.astype(np.float32), "all", False),
        (lambda x: x + x, WIDE[:8], "all", False),  # nothing to speak of
    ],
)
def test_heavy_operations_without_a_kernel(function, x, kernels, told):
    found = left_out(function, [x], make_options(check=False, kernels=kernels))
    assert len(found) == told
    for event in found:
        (reason,) = event.reasons
        assert reason.code == ReasonCode.NO_KERNEL.name
        assert "100% of the predicted time" in reason.message and "matmul at " in reason.message


def test_the_log_of_a_compile_has_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.mlir").write_bytes(LOOP)
    flags = ["loop.mlir", "-o", "loop.vmfb", "--log", "log.jsonl", "--also-mode", "memory_first"]
    assert pyc_compile.run(flags) == 0
    (event,) = [e for e in events_of(read_log("log.jsonl")) if e.name == "also_modes"]
    assert event.reasons[0].code == ReasonCode.NO_ARENA_ENTRY.name
