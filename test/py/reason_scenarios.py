"""For each reason code something that leads to it, done through the doors that users take.

A scenario is a function of `Here` that returns the codes that it was given: those of the error, or
of the decision, event or report where the code is no error's. A new code needs one:

    @provokes(ReasonCode.NEW_CODE)
    def _(here: Here) -> Codes:
        return told(lambda: pyc_mlir.compile(...))
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from modules import host_target
from stream_programs import branches

import pyc_mlir
from pyc_mlir import Contract, Device, Recipe
from pyc_mlir.artifact import Artifact, make_manifest
from pyc_mlir.bench.environment import probe
from pyc_mlir.bench.schema import Report, compare
from pyc_mlir.budget_choice import within_budget
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.identity import Identity
from pyc_mlir.cache.store import ARTIFACT, Store
from pyc_mlir.cache.unkeyed import Unkeyed
from pyc_mlir.compilation import build, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir
from pyc_mlir.guards import Argument, Signature
from pyc_mlir.iree import planned
from pyc_mlir.iree.array import to_device
from pyc_mlir.iree.attempts import Request
from pyc_mlir.iree.budget import Budget, BudgetNotKept, Need
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.choices import Choices, Decision
from pyc_mlir.pipelines.contract import NO_FALLBACK, ROUNDING, STRICT
from pyc_mlir.pipelines.pass_manager import run_pipeline
from pyc_mlir.pipelines.target import Target
from pyc_mlir.program import Program

Codes = set[ReasonCode]


@dataclass(frozen=True)
class Here:
    """Where a scenario takes place: a folder of its own, and patches that end with it."""

    folder: Path
    patch: pytest.MonkeyPatch


SCENARIOS: dict[ReasonCode, Callable[[Here], Codes]] = {}


def provokes(code: ReasonCode) -> Callable[[Callable[[Here], Codes]], Callable[[Here], Codes]]:
    """Enter a scenario into the table."""

    def enter(scenario: Callable[[Here], Codes]) -> Callable[[Here], Codes]:
        assert code not in SCENARIOS, f"{code.name} has a scenario already"
        SCENARIOS[code] = scenario
        return scenario

    return enter


def told(call: Callable[[], object]) -> Codes:
    """The code of the error that a call ends in; none if it does not."""
    try:
        call()
    except PycError as error:
        assert str(error).endswith(f"[{error.code.name}]")
        return {error.code}
    return set()


def fallback_codes(decisions: Iterable[Decision]) -> Codes:
    """The codes that the evidence of fallbacks begins with."""
    taken = [d for d in decisions if d.decided_by == "fallback"]
    return {ReasonCode[d.evidence[0].partition(":")[0]] for d in taken}


# Programs that scenarios share.

SYNC = Device("local-sync")
X = np.ones((2, 3), np.float32)
FEW_BYTES = Contract(memory_budget_bytes=100)
DOT = """func.func @main(%x: tensor<4x4xf32> {pyc.name = "x"}) -> tensor<4x4xf32> {
  %c = "pyc.constant"() {value = dense<500.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "pyc.minimum"(%x, %c) : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}"""
CHECKED = b"""func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %ok = arith.cmpi ult, %n, %c4 : index
  cf.assert %ok, "too long"
  return %a : tensor<?xf32>
}"""


@cache
def pair() -> Program:
    """relu(a) + b with a common dimension of 1 to 4."""
    spec = pyc_mlir.spec("f32", ("n", 3))
    function = lambda a, b: np.maximum(a, 0) + b  # noqa: E731
    return pyc_mlir.compile(function, [spec, spec], device=SYNC, dims={"n": (1, 4)})


@cache
def two_plans() -> Program:
    """Softmax of a product, with two plans and an arena."""
    weight = np.ones((64, 48), np.float32) / 8

    def function(x: Any) -> Any:
        return np.tanh(x @ weight) @ weight.T, x @ weight

    return pyc_mlir.compile(
        function, [np.ones((8, 64), np.float32)], device=SYNC, also_modes=["memory_first"]
    )


@cache
def checked() -> Program:
    """A program with a check of its own, and with the plain entry only."""
    one = (Argument("a", np.dtype(np.float32), ("n",)),)
    manifest = make_manifest(host_target(), Signature(one, one), "checked")
    return Program(Artifact(compile_module(CHECKED, host_target()), manifest), SYNC)


def small(x: Any) -> Any:
    return np.tanh(x)


def reduced(x: Any) -> Any:
    return np.tanh(x).sum(axis=1), np.exp(x)


# Calls


@provokes(ReasonCode.BAD_ARGUMENT)
def _(here: Here) -> Codes:
    return told(lambda: Device("abacus"))


@provokes(ReasonCode.ARGUMENT_COUNT)
def _(here: Here) -> Codes:
    return told(lambda: pair()(X))


@provokes(ReasonCode.ARGUMENT_DTYPE)
def _(here: Here) -> Codes:
    return told(lambda: pair()(X, X.astype(np.float64)))


@provokes(ReasonCode.ARGUMENT_SHAPE)
def _(here: Here) -> Codes:
    return told(lambda: pair()(X, X[0]))


@provokes(ReasonCode.DIMENSION_MISMATCH)
def _(here: Here) -> Codes:
    return told(lambda: pair()(X, X[:1]))


@provokes(ReasonCode.DIMENSION_OUT_OF_RANGE)
def _(here: Here) -> Codes:
    five = np.ones((5, 3), np.float32)
    return told(lambda: pair()(five, five))


@provokes(ReasonCode.RUNTIME_FAILED)
def _(here: Here) -> Codes:
    return told(lambda: checked()(np.ones(5, np.float32)))


@provokes(ReasonCode.OUTPUT_OVERLAP)
def _(here: Here) -> Codes:
    x = to_device(np.ones((4, 4), np.float32), SYNC)
    program = pyc_mlir.compile(lambda x: x @ x, [np.ones((4, 4), np.float32)], device=SYNC)
    return told(lambda: program(x, out=x))


@provokes(ReasonCode.DONATION_UNSAFE)
def _(here: Here) -> Codes:
    program = pyc_mlir.compile(lambda x: x.sum(axis=1), [X], device=SYNC)
    return told(lambda: program(to_device(X, SYNC), donate=[0]))


@provokes(ReasonCode.NO_ARENA_ENTRY)
def _(here: Here) -> Codes:
    x = to_device(np.ones(3, np.float32), SYNC)
    return told(lambda: checked()(x, out=x))


@provokes(ReasonCode.ARENA_TOO_SMALL)
def _(here: Here) -> Codes:
    program = Program(two_plans().artifact, SYNC)
    x = np.ones((8, 64), np.float32)
    program(x)
    arena = program._arena
    assert arena is not None
    arena.pool._arenas[0].buffer = SYNC.allocate(64)
    return told(lambda: program(x))


@provokes(ReasonCode.MODE_SWITCHED)
def _(here: Here) -> Codes:
    program = Program(two_plans().artifact, SYNC)
    program.use_mode("memory_first")
    return {s.code for s in program.stats().switches}


@provokes(ReasonCode.DEVICE_UNAVAILABLE)
def _(here: Here) -> Codes:
    return told(lambda: Program(build(small, [X], make_options("cuda")), SYNC))


# Models


@provokes(ReasonCode.FILE_ACCESS)
def _(here: Here) -> Codes:
    return told(lambda: pyc_mlir.load(here.folder / "missing.vmfb"))


@provokes(ReasonCode.BAD_ARTIFACT)
def _(here: Here) -> Codes:
    (here.folder / "x.vmfb").write_bytes(b"no program")
    return told(lambda: pyc_mlir.load(here.folder / "x.vmfb"))


@provokes(ReasonCode.BAD_MODEL)
def _(here: Here) -> Codes:
    pair().save(here.folder / "x.vmfb")
    return told(lambda: pyc_mlir.compile(here.folder / "x.vmfb"))


@provokes(ReasonCode.INVALID_IR)
def _(here: Here) -> Codes:
    return told(lambda: pyc_mlir.compile(DOT.replace("pyc.minimum", "pyc.minimun")))


@provokes(ReasonCode.UNTRACEABLE)
def _(here: Here) -> Codes:
    return told(lambda: pyc_mlir.compile(lambda x: x if x.sum() > 0 else -x, [X]))


def _onnx(op: str, array: np.ndarray, *constants: Any, **attributes: Any) -> Codes:
    from onnx_models import node_model

    return told(lambda: pyc_mlir.compile(node_model(op, [array], constants, attributes)))


@provokes(ReasonCode.UNSUPPORTED_OP)
def _(here: Here) -> Codes:
    return _onnx("Det", np.ones((3, 3), np.float32))


@provokes(ReasonCode.UNSUPPORTED_ATTRIBUTE)
def _(here: Here) -> Codes:
    three_d = np.ones((1, 1, 4, 4, 4), np.float32)
    return _onnx("MaxPool", three_d, kernel_shape=[2, 2, 2])


@provokes(ReasonCode.UNSUPPORTED_DTYPE)
def _(here: Here) -> Codes:
    return told(lambda: pyc_mlir.compile(small, [np.ones(3, np.complex64)]))


@provokes(ReasonCode.MISSING_DEPENDENCY)
def _(here: Here) -> Codes:
    here.patch.delitem(sys.modules, "pyc_mlir.frontends.onnx_import", raising=False)
    here.patch.setitem(sys.modules, "onnx", None)
    return told(lambda: pyc_mlir.compile(b"a model"))


# Passes and choices


def _piped(pipeline: str) -> Codes:
    with new_context() as context:
        text = DOT.replace("4x4x", "?x4x")
        module = parse_mlir(text, context)
        return told(lambda: run_pipeline(module, pipeline, Choices()))


@provokes(ReasonCode.INVALID_PIPELINE)
def _(here: Here) -> Codes:
    return _piped("pyc-fuze")


@provokes(ReasonCode.PASS_FAILED)
def _(here: Here) -> Codes:
    return _piped("pyc-plan-memory")


@provokes(ReasonCode.NATIVE_CRASH)
def _(here: Here) -> Codes:
    code = (
        "import os, sys; from pyc_mlir.tools import pyc_compile as c; "
        "c.run = lambda argv: os.abort(); sys.exit(c.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    return {ReasonCode[name] for name in re.findall(r"\[([A-Z_]+)\]$", done.stderr, re.MULTILINE)}


@provokes(ReasonCode.RECIPE_MISMATCH)
def _(here: Here) -> Codes:
    recipe = Recipe({"pyc-fuse:gone": "keep"})
    return told(lambda: pyc_mlir.compile(small, [X], recipe=recipe))


@provokes(ReasonCode.REPLAY_MISMATCH)
def _(here: Here) -> Codes:
    recipe = Recipe({}, graph_id="that of another program")
    return told(lambda: pyc_mlir.compile(small, [X], recipe=recipe))


@provokes(ReasonCode.INVALID_CHOICE)
def _(here: Here) -> Codes:
    class Stubborn:
        name = "stubborn"

        def prefer(self, site: Any, alternatives: Any) -> str:
            return "mine"

    return told(lambda: pyc_mlir.compile(small, [X], policy=Stubborn()))


@provokes(ReasonCode.ENVIRONMENT_MISMATCH)
def _(here: Here) -> Codes:
    first = probe()
    other = replace(first, cores=first.cores + 1)
    return told(lambda: compare(Report("s", first), Report("s", other)))


# Targets and code generation


@provokes(ReasonCode.UNKNOWN_TARGET)
def _(here: Here) -> Codes:
    return told(lambda: make_options("tpu"))


@provokes(ReasonCode.TARGET_COMPILE_FAILED)
def _(here: Here) -> Codes:
    cuda = Target.named("cuda")
    no_codegen = replace(cuda, flags=("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_90"))
    square = np.ones((4, 4), np.float32)
    return told(lambda: build(lambda x: x @ x, [square], make_options(no_codegen)))


def _no_aggressive_fusion(here: Here) -> None:
    honest = Request.compile
    failed = PycError(ReasonCode.TARGET_COMPILE_FAILED, "x: expected y, got: too large")

    def compile(self: Request, setting: str) -> bytes:
        if setting == "aggressive":
            raise failed
        return honest(self, setting)

    here.patch.setattr(Request, "compile", compile)


@provokes(ReasonCode.CODEGEN_FALLBACK)
def _(here: Here) -> Codes:
    _no_aggressive_fusion(here)
    return fallback_codes(pyc_mlir.compile(DOT, planner_mode="iree").artifact.decisions)


@provokes(ReasonCode.FALLBACK_REFUSED)
def _(here: Here) -> Codes:
    _no_aggressive_fusion(here)
    contract = Contract(fallbacks=(NO_FALLBACK,))
    return told(lambda: pyc_mlir.compile(DOT, planner_mode="iree", contract=contract))


@provokes(ReasonCode.PLANNING_FAILED)
def _(here: Here) -> Codes:
    def broken(*_: Any, **__: Any) -> Any:
        raise PycError(ReasonCode.PASS_FAILED, "regions: expected a form that is known")

    here.patch.setattr(planned, "regions_of", broken)
    return fallback_codes(build(reduced, [X], make_options()).decisions)


# Contracts


@provokes(ReasonCode.UNSUPPORTED_CLAUSE)
def _(here: Here) -> Codes:
    return told(lambda: make_options("cuda", Contract(determinism=STRICT)))


@provokes(ReasonCode.UNCHECKABLE_CLAUSE)
def _(here: Here) -> Codes:
    return told(lambda: Contract(latency_binding=True))


@provokes(ReasonCode.CONTRACT_CONFLICT)
def _(here: Here) -> Codes:
    both = ("iree",)
    return told(lambda: Contract(determinism=STRICT, max_error=ROUNDING, fallbacks=both))


@provokes(ReasonCode.NO_ORACLE)
def _(here: Here) -> Codes:
    return told(lambda: pair().compare_every(2))


@provokes(ReasonCode.LATENCY_MISSED)
def _(here: Here) -> Codes:
    contract = Contract(latency_goal_seconds=1e-9, latency_binding=True)
    return told(lambda: pyc_mlir.compile(DOT, contract=contract))


@provokes(ReasonCode.NOT_DETERMINISTIC)
def _(here: Here) -> Codes:
    honest, count = Program.answer, iter(range(100))

    def answer(self: Program, inputs: Any) -> list[np.ndarray]:
        return [f + np.float32(next(count)) for f in honest(self, inputs)]

    here.patch.setattr(Program, "answer", answer)
    contract = Contract(determinism=STRICT)
    return told(lambda: pyc_mlir.compile(DOT, contract=contract))


def _wrong(here: Here) -> None:
    """The compiler takes 500 for -1, unless IREE makes all code."""
    from pyc_mlir import lowering

    honest = lowering._optimize

    def faulty(module: Any, options: Any, choices: Any) -> None:
        if options.kernels != lowering.NO_KERNELS:
            wrong = parse_mlir(str(module).replace("5.000000e+02", "-1.0"), module.context)
            for op in list(module.body.operations):
                op.operation.erase()
            for op in list(wrong.body.operations):
                module.body.append(op)
        honest(module, options, choices)

    here.patch.setattr(lowering, "_optimize", faulty)


@provokes(ReasonCode.WRONG_RESULT)
def _(here: Here) -> Codes:
    _wrong(here)
    return told(lambda: pyc_mlir.compile(DOT, contract=Contract(max_error=ROUNDING)))


@provokes(ReasonCode.FALLBACK_TAKEN)
def _(here: Here) -> Codes:
    _wrong(here)
    contract = Contract(max_error=ROUNDING, fallbacks=("iree",))
    return fallback_codes(pyc_mlir.compile(DOT, contract=contract).artifact.decisions)


@provokes(ReasonCode.BUDGET_IMPOSSIBLE)
def _(here: Here) -> Codes:
    options = make_options(kernels="iree", planner_mode="memory_first", contract=FEW_BYTES)
    return told(lambda: build(branches().code.decode(), None, options))


@provokes(ReasonCode.BUDGET_NOT_FOUND)
def _(here: Here) -> Codes:
    dynamic = pyc_mlir.spec("f32", ("n", 3))
    contract = Contract(memory_budget_bytes=1 << 20)
    return told(lambda: pyc_mlir.compile(reduced, [dynamic], contract=contract))


@provokes(ReasonCode.BUDGET_RETRY)
def _(here: Here) -> Codes:
    ways: list[Any] = []

    def make(options: Any, choices: Choices) -> list[Decision]:
        ways.append(options)
        if len(ways) == 1:
            raise BudgetNotKept(Budget(1 << 20, 0, 1), Need(0, 0, 2 << 20, 1.0, 1.0), proven=False)
        return choices.log

    options = make_options(contract=Contract(memory_budget_bytes=1 << 20))
    return fallback_codes(within_budget(options, make))


# The cache

WHO = Identity({"numpy": "1"}, "s", {"cpu": "x"})


def _cached(here: Here, identity: Callable[[], Identity] = lambda: WHO) -> Codes:
    """The codes of one compile through the cache in the scenario's folder."""
    cache = Cache(Store(here.folder / "cache"), identity=identity)
    options = make_options(kernels="iree", planner_mode="iree")
    record = build(small, [X], options, cache=cache).cached
    assert record is not None
    return {e.code for e in record.events}


@provokes(ReasonCode.CACHE_MISS)
def _(here: Here) -> Codes:
    codes = _cached(here)
    assert not _cached(here), "the second compile is a hit"
    return codes


@provokes(ReasonCode.CACHE_DAMAGED)
def _(here: Here) -> Codes:
    _cached(here)
    store = Store(here.folder / "cache")
    path = store.path(store.entries()[0].name) / ARTIFACT
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return _cached(here)


@provokes(ReasonCode.CACHE_FOLDER)
def _(here: Here) -> Codes:
    (here.folder / "file").write_bytes(b"")
    store = Store(here.folder / "file" / "below")
    return {e.code for e in store.write("0" * 64, b"{}", b"data")}


@provokes(ReasonCode.CACHE_BYPASSED)
def _(here: Here) -> Codes:
    def changed() -> Identity:
        raise Unkeyed("PyC's source changed")

    return _cached(here, changed)
