"""Scenarios of reason codes: calls, models, passes, targets (reason_table.py)."""

import contextlib
import io
import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from faults import without_aggressive_fusion
from modules import two_plans
from reason_table import (
    DOT,
    SYNC,
    Codes,
    Here,
    X,
    checked,
    fallback_codes,
    pair,
    provokes,
    reduced,
    reported,
    small,
)
from wisdoms import reversed_wisdom

import pyc_mlir
from pyc_mlir import Contract, Device, Recipe, nn
from pyc_mlir.api import build, notices
from pyc_mlir.compilation import assign_memory as planned
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.util.index_ranges import IndexRange, ranges_text
from pyc_mlir.frontends.hlo.importer import Loops
from pyc_mlir.frontends.mlir_text import parse_mlir
from pyc_mlir.measure.environment import current_place, probe
from pyc_mlir.measure.machine import measure_token
from pyc_mlir.measure.records import Report, compare
from pyc_mlir.pipelines.choices.choices import coverage
from pyc_mlir.pipelines.choices.contract import NO_FALLBACK
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools import pyc_cache

# Calls


@provokes(ReasonCode.BAD_ARGUMENT)
def _(here: Here) -> Codes:
    return reported(lambda: Device("abacus"))


@provokes(ReasonCode.ARGUMENT_COUNT)
def _(here: Here) -> Codes:
    return reported(lambda: pair()(X))


@provokes(ReasonCode.ARGUMENT_DTYPE)
def _(here: Here) -> Codes:
    return reported(lambda: pair()(X, X.astype(np.float64)))


@provokes(ReasonCode.ARGUMENT_SHAPE)
def _(here: Here) -> Codes:
    return reported(lambda: pair()(X, X[0]))


@provokes(ReasonCode.DIMENSION_MISMATCH)
def _(here: Here) -> Codes:
    return reported(lambda: pair()(X, X[:1]))


@provokes(ReasonCode.DIMENSION_OUT_OF_RANGE)
def _(here: Here) -> Codes:
    five = np.ones((5, 3), np.float32)
    return reported(lambda: pair()(five, five))


@provokes(ReasonCode.INDEX_OUT_OF_RANGE)
def _(here: Here) -> Codes:
    indices = json.dumps(ranges_text([IndexRange(0, 3)]))
    text = f"""func.func @main(%i: tensor<1xi64>, %x: tensor<3xf32>) -> tensor<1xf32>
        attributes {{pyc.indices = {indices}}} {{
      %0 = "pyc.gather"(%x, %i) : (tensor<3xf32>, tensor<1xi64>) -> tensor<1xf32>
      return %0 : tensor<1xf32>
    }}"""
    return reported(lambda: pyc_mlir.compile(text, device=SYNC)(np.array([3]), X[0]))


@provokes(ReasonCode.RUNTIME_FAILED)
def _(here: Here) -> Codes:
    return reported(lambda: checked()(np.ones(5, np.float32)))


@provokes(ReasonCode.OUTPUT_OVERLAP)
def _(here: Here) -> Codes:
    x = to_device(np.ones((4, 4), np.float32), SYNC)
    program = pyc_mlir.compile(lambda x: x @ x, [np.ones((4, 4), np.float32)], device=SYNC)
    return reported(lambda: program(x, out=x))


@provokes(ReasonCode.DONATION_UNSAFE)
def _(here: Here) -> Codes:
    program = pyc_mlir.compile(lambda x: x.sum(axis=1), [X], device=SYNC)
    return reported(lambda: program(to_device(X, SYNC), donate=[0]))


@provokes(ReasonCode.DONATED_ARRAY)
def _(here: Here) -> Codes:
    program = pyc_mlir.compile(lambda x: x * 2, [X], device=SYNC)
    x = to_device(X, SYNC)
    program(x, donate=[0])
    return reported(x.numpy)


@provokes(ReasonCode.NO_ARENA_ENTRY)
def _(here: Here) -> Codes:
    x = to_device(np.ones(3, np.float32), SYNC)
    return reported(lambda: checked()(x, out=x))


@provokes(ReasonCode.ARENA_TOO_SMALL)
def _(here: Here) -> Codes:
    program = Program(two_plans().artifact, SYNC)
    x = np.ones((8, 64), np.float32)
    program(x)
    arena = program._plans.current.arena
    assert arena is not None
    arena.pool._arenas[0].buffer = SYNC.allocate(64)
    return reported(lambda: program(x))


@provokes(ReasonCode.MODE_SWITCHED)
def _(here: Here) -> Codes:
    program = Program(two_plans().artifact, SYNC)
    program.use_mode("memory_first")
    return {s.code for s in program.stats().switches}


@provokes(ReasonCode.ARM_CHANGED)
def _(here: Here) -> Codes:
    program = Program(two_plans().artifact, SYNC)
    selector = pyc_mlir.Selector(load=lambda: 0.0)
    program.adapt(selector)
    x = np.ones((8, 64), np.float32)
    program(x)
    (route,) = selector._routes.values()
    selector.remove(route, 1, "failed")
    return {ReasonCode[r.code] for e in program.log() for r in e.reasons if e.name == "arm"}


@provokes(ReasonCode.NO_SHAPE_PLANS)
def _(here: Here) -> Codes:
    artifact = build(lambda x: x + 1, [X], make_options(plans=4))
    (made,) = [d for d in artifact.decisions if d.site.pass_name == "shape-plans"]
    return {ReasonCode[code] for e in made.grounds for code in e.codes}


@provokes(ReasonCode.FORKED_CHILD)
def _(here: Here) -> Codes:
    here.patch.setattr("pyc_mlir.iree.compiler._Threads.lost", True)
    return reported(lambda: pyc_mlir.compile(small, [X], device=SYNC))


@provokes(ReasonCode.DEVICE_UNAVAILABLE)
def _(here: Here) -> Codes:
    return reported(lambda: Program(build(small, [X], make_options(target="cuda")), SYNC))


@provokes(ReasonCode.CANNOT_PROFILE)
def _(here: Here) -> Codes:
    program = Program(two_plans().artifact, SYNC)
    program.use_mode("memory_first")
    return reported(lambda: program.profile(np.ones((8, 64), np.float32)))


@provokes(ReasonCode.RUNTIME_DIFFERS)
def _(here: Here) -> Codes:
    here.patch.setattr("pyc_mlir.runtime.executable.runtime_version", lambda: "0.0")
    log = pyc_mlir.compile(small, [X], device=SYNC).log()
    return {ReasonCode[d.reasons[0].code] for d in log if d.site.op_id == "release"}


# Models


@provokes(ReasonCode.FILE_ACCESS)
def _(here: Here) -> Codes:
    return reported(lambda: pyc_mlir.load(here.folder / "missing.vmfb"))


@provokes(ReasonCode.BAD_ARTIFACT)
def _(here: Here) -> Codes:
    (here.folder / "x.vmfb").write_bytes(b"no program")
    return reported(lambda: pyc_mlir.load(here.folder / "x.vmfb"))


@provokes(ReasonCode.BAD_MODEL)
def _(here: Here) -> Codes:
    pair().save(here.folder / "x.vmfb")
    return reported(lambda: pyc_mlir.compile(here.folder / "x.vmfb"))


@provokes(ReasonCode.INVALID_IR)
def _(here: Here) -> Codes:
    return reported(lambda: pyc_mlir.compile(DOT.replace("pyc.minimum", "pyc.minimun")))


@provokes(ReasonCode.UNTRACEABLE)
def _(here: Here) -> Codes:
    return reported(lambda: pyc_mlir.compile(lambda x: x if x.sum() > 0 else -x, [X]))


def _onnx(op: str, array: np.ndarray, *constants: Any, **attributes: Any) -> Codes:
    from onnx_models import node_model

    return reported(lambda: pyc_mlir.compile(node_model(op, [array], constants, attributes)))


@provokes(ReasonCode.UNSUPPORTED_OP)
def _(here: Here) -> Codes:
    return _onnx("RandomNormalLike", np.ones((3, 3), np.float32))


@provokes(ReasonCode.UNSUPPORTED_ATTRIBUTE)
def _(here: Here) -> Codes:
    return _onnx("Unique", np.ones(3, np.float32), sorted=0)


@provokes(ReasonCode.UNSUPPORTED_DTYPE)
def _(here: Here) -> Codes:
    return reported(lambda: pyc_mlir.compile(small, [np.ones(3, np.complex64)]))


@provokes(ReasonCode.MISSING_DEPENDENCY)
def _(here: Here) -> Codes:
    here.patch.delitem(sys.modules, "pyc_mlir.frontends.onnx.importer", raising=False)
    here.patch.setitem(sys.modules, "onnx", None)
    return reported(lambda: pyc_mlir.compile(b"a model"))


# Passes and choices


def _piped(pipeline: str) -> Codes:
    with new_context() as context:
        text = DOT.replace("4x4x", "?x4x")
        module = parse_mlir(text, context)
        return reported(lambda: run_pipeline(module, pipeline, PassContext()))


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
        "c._run = lambda *given: os.abort(); sys.exit(c.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 70
    return _codes_in(done.stderr)


def _codes_in(output_text: str) -> Codes:
    return {ReasonCode[name] for name in re.findall(r"\[([A-Z_]+)\]$", output_text, re.MULTILINE)}


@provokes(ReasonCode.OUT_OF_MEMORY)
def _(here: Here) -> Codes:
    code = (
        "import sys, resource; from pyc_mlir.tools import pyc_compile as c; "
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)); "
        "c._run = lambda *given: len(bytes(1 << 30)); sys.exit(c.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    return _codes_in(done.stderr)


@provokes(ReasonCode.INTERNAL_ERROR)
def _(here: Here) -> Codes:
    here.patch.setattr(pyc_cache, "listing", lambda store: 1 / 0)
    output_text = io.StringIO()
    with contextlib.redirect_stderr(output_text):
        assert pyc_cache.main(["--dir", str(here.folder), "ls"]) == 70
    return _codes_in(output_text.getvalue())


@provokes(ReasonCode.RECIPE_MISMATCH)
def _(here: Here) -> Codes:
    recipe = Recipe({"pyc-fuse:gone": "keep"})
    return reported(lambda: pyc_mlir.compile(small, [X], recipe=recipe))


@provokes(ReasonCode.RECIPE_PARTIAL)
def _(here: Here) -> Codes:
    made = build(small, [X], make_options())
    first = {d.site.work_key: d.chosen for d in made.decisions if d.site.work}
    works = dict(list(first.items())[:1])
    recipe = Recipe({"pyc-fuse:gone": "keep"}, made_for="another graph", works=works)
    used = coverage(build(small, [X], make_options(recipe=recipe)).decisions)
    assert used.carried == 1 and used.left
    return {ReasonCode[str(used).partition(":")[0]]}


@provokes(ReasonCode.NO_EVIDENCE)
def _(here: Here) -> Codes:
    return reported(
        lambda: pyc_mlir.compile(nn.softmax, [X], policy="fastest", require_evidence=True)
    )


@provokes(ReasonCode.BAD_WISDOM)
def _(here: Here) -> Codes:
    (here.folder / "w.json").write_bytes(Wisdom().to_bytes().replace(b"1", b"2", 1))
    return reported(lambda: make_options(policy="fastest", wisdom=here.folder / "w.json"))


@provokes(ReasonCode.WISDOM_FOREIGN)
def _(here: Here) -> Codes:
    made = build(nn.softmax, [X], make_options())
    wisdom = reversed_wisdom(made.decisions, hardware="h1-other")
    again = build(nn.softmax, [X], make_options(policy="fastest", wisdom=wisdom))
    assert [d.chosen for d in again.decisions[1:]] == [d.chosen for d in made.decisions]
    output_text = " ".join(str(fact) for d in again.decisions for fact in d.facts)
    return {code for code in ReasonCode if f" {code.name}: " in output_text}


@provokes(ReasonCode.NO_KERNEL)
def _(here: Here) -> Codes:
    options = make_options(check=False)
    events = notices(build(lambda x: x @ x, [np.ones((512, 512))], options), options)
    return {ReasonCode[reason.code] for event in events for reason in event.reasons}


@provokes(ReasonCode.LOOP_UNROLLED)
def _(here: Here) -> Codes:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("pyc_mlir").addHandler(handler)
    try:
        loops = Loops()
        for _ in range(512):
            loops.step(6)
        loops.tell()
    finally:
        logging.getLogger("pyc_mlir").removeHandler(handler)
    (message,) = told
    assert "3072 in 512 steps" in message
    return _codes_in(message)


@provokes(ReasonCode.DATABASE_UNUSABLE)
def _(here: Here) -> Codes:
    # Without SQLAlchemy that is what is missing; with it, an engine for such a URL.
    from importlib import import_module

    return reported(
        lambda: import_module("pyc_mlir.lab.evidence.database.engine").connect("mysql://host/name")
    )


def _study(here: Here) -> Any:
    """An open database with a study of one trial, its rows, and the trial's trace."""
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")
    from pyc_mlir.lab.evidence import rows
    from pyc_mlir.lab.evidence.database.store import EvidenceStore

    store, place = EvidenceStore.open(f"sqlite:///{here.folder}/pyc.db"), current_place()
    graph, load = rows.Graph("w1-a", "work", "w1-a", "text", 1), rows.Workload("w1-a")
    made = rows.Implementation("w1-a", {"pass": "choice"})
    session = rows.Session(place.id, "1", 1, 1, 0, 1, "2026-01-01")
    study = rows.Study("w1-a", (load.id,), place.id, "seconds", "", "random", 0)
    store.add_place(place)
    store.add(graph, load, made, session, study)
    store.add_trials(study.id, [{"knob": 1}])
    return store, study, rows.Trace(session.id, made.id, load.id, wall=rows.samples([1.0]))


@provokes(ReasonCode.EVIDENCE_CONFLICT)
def _(here: Here) -> Codes:
    store, _, trace = _study(here)
    store.add(trace)
    return reported(lambda: store.add(replace(trace, wall=[2.0])))


@provokes(ReasonCode.NOT_PROMOTED)
def _(here: Here) -> Codes:
    store, study, _ = _study(here)
    from pyc_mlir.lab.evidence.rows import Implementation
    from pyc_mlir.lab.lanes.promotion import Wanted, promote

    candidate, default = (Implementation(study.graph_id, {"pass": c}) for c in ("new", "old"))
    store.add(candidate, default)
    wanted = Wanted(incumbent=default)
    return reported(lambda: promote(store, candidate, current_place(), wanted, "test"))


@provokes(ReasonCode.LEASE_LOST)
def _(here: Here) -> Codes:
    store, study, trace = _study(here)
    suspended = store.claim(study.id, "suspended", seconds=-1)
    store.claim(study.id, "other", seconds=60)
    return reported(lambda: store.finish(suspended, trace))


@provokes(ReasonCode.MACHINE_BUSY)
def _(here: Here) -> Codes:
    path = here.folder / "token"

    def again() -> None:
        with measure_token("the second", path=path):
            pass

    with measure_token("the first", path=path):
        return reported(again)


@provokes(ReasonCode.REPLAY_MISMATCH)
def _(here: Here) -> Codes:
    recipe = Recipe({}, graph_id="that of another program")
    return reported(lambda: pyc_mlir.compile(small, [X], recipe=recipe))


@provokes(ReasonCode.INVALID_CHOICE)
def _(here: Here) -> Codes:
    class Stubborn:
        name = "stubborn"

        def prefer(self, site: Any, alternatives: Any) -> str:
            return "mine"

    return reported(lambda: pyc_mlir.compile(small, [X], policy=Stubborn()))


@provokes(ReasonCode.ENVIRONMENT_MISMATCH)
def _(here: Here) -> Codes:
    first = probe()
    other = replace(first, cores=first.cores + 1)
    return reported(lambda: compare(Report("s", first), Report("s", other)))


# Targets and code generation


@provokes(ReasonCode.UNKNOWN_TARGET)
def _(here: Here) -> Codes:
    return reported(lambda: make_options(target="tpu"))


@provokes(ReasonCode.TARGET_COMPILE_FAILED)
def _(here: Here) -> Codes:
    cuda = Target.named("cuda")
    no_codegen = replace(cuda, flags=("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_90"))
    square = np.ones((4, 4), np.float32)
    return reported(lambda: build(lambda x: x @ x, [square], make_options(target=no_codegen)))


@provokes(ReasonCode.CODEGEN_FALLBACK)
def _(here: Here) -> Codes:
    without_aggressive_fusion(here.patch)
    return fallback_codes(pyc_mlir.compile(DOT, planner_mode="iree").artifact.decisions)


@provokes(ReasonCode.FALLBACK_REFUSED)
def _(here: Here) -> Codes:
    without_aggressive_fusion(here.patch)
    contract = Contract(fallbacks=(NO_FALLBACK,))
    return reported(lambda: pyc_mlir.compile(DOT, planner_mode="iree", contract=contract))


@provokes(ReasonCode.PLANNING_FAILED)
def _(here: Here) -> Codes:
    def broken(*_: Any, **__: Any) -> Any:
        raise PycError(ReasonCode.PASS_FAILED, "regions: expected a form that is known")

    here.patch.setattr(planned, "regions_of", broken)
    return fallback_codes(build(reduced, [X], make_options()).decisions)
