"""What travels between a parent and its worker: frames, requests, answers, stages."""

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sample
from made_errors import ERRORS
from option_values import CHANGES, REFUSED

import pyc_mlir
from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.artifact.import_report import GraphBreak, ImportReport, UnsupportedModel
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.artifact.verification import Checks, Verification
from pyc_mlir.compilation.job import CHEAPEST, DEFAULT, FewestSteps, Job, at_stage, stages_below
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.compilation.references import ForeignOracle, PycOracle
from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.frontends.sources import (
    Bytecode,
    MlirFile,
    MlirText,
    OnnxBytes,
    OnnxFile,
    Packed,
)
from pyc_mlir.iree.diagnostics import CompileError, IreeDiagnostic
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, FirstIsBest, Recipe, Site
from pyc_mlir.pipelines.choices.contract import ClauseReport, Contract, Status
from pyc_mlir.pipelines.choices.evidence import Note, Reason
from pyc_mlir.pipelines.choices.policies import load_policy
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.tools.cli.common import UsageError
from pyc_mlir.worker.messages import (
    COMPILE,
    artifact_frame,
    artifact_of,
    error_frame,
    error_of,
    job_of,
    policy_forms,
    request,
    travelling,
)
from pyc_mlir.worker.process import Channel, Frame, FrameReader, read_frame

FRAMES = [
    Frame({}),
    Frame({"a": [1, None, "é\n"]}, (b"x", b"", bytes(range(256)) * 300)),
    Frame({"deep": {"er": {"est": 1.5}}}, (np.arange(1000, dtype=np.int64).data.cast("B"),)),
]


def joined(frame: Frame) -> bytes:
    return b"".join(frame.parts())


def same(a: Frame, b: Frame) -> bool:
    return a.header == b.header and list(map(bytes, a.blobs)) == list(map(bytes, b.blobs))


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_survive(frame):
    assert same(read_frame(joined(frame)), frame)


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_frames_come_in_pieces(step):
    data, reader, found = b"".join(map(joined, FRAMES)), FrameReader(), []
    position = 0

    def take(wanted: memoryview) -> int:
        nonlocal position
        piece = data[position : position + min(step, len(wanted))]
        wanted[: len(piece)] = piece
        position += len(piece)
        return len(piece)

    while reader.fill(take):
        found += reader.frames
        reader.frames.clear()
    assert len(found) == len(FRAMES)
    assert all(map(same, found, FRAMES))


DAMAGED = {
    "nothing": b"",
    "another magic": b"PyC2" + joined(FRAMES[1])[4:],
    "cut in its head": joined(FRAMES[1])[:7],
    "cut in a blob": joined(FRAMES[1])[:-1],
    "no JSON": joined(FRAMES[0])[:-2] + b"[}",
    "no object": joined(FRAMES[0])[:-2] + b"[]",
    "endless JSON": b"PyC1" + b"\xff" * 8,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_frame_is_told(name):
    with pytest.raises(ConnectionError, match="expected"):
        read_frame(DAMAGED[name])


def test_a_parent_never_waits_to_send():
    ours, theirs = socket.socketpair()
    channel, other = Channel(ours, blocking=False), Channel(theirs, blocking=True)
    large = Frame({"n": 1}, (b"z" * 10_000_000,))
    channel.send(large)
    assert channel.is_sending, "more than the socket's buffer"
    got: list[Frame] = []
    reader = threading.Thread(target=lambda: got.append(other.receive()))
    reader.start()
    while channel.is_sending:
        assert channel.pump() == []
    reader.join()
    assert same(got[0], large)
    other.send(Frame({"n": 2}))
    other.close()
    assert [f.header for f in channel.pump()] == [{"n": 2}], "before the end is told"
    with pytest.raises(OSError, match="ended"):
        channel.pump()


OPTIONS = replace(Options(), verify_ir=True, **CHANGES, **REFUSED)


def travelled(options: Options, ask: Callable[[str], Any]) -> Options:
    """The options as a worker reads them."""
    data = json.loads(json.dumps(options.data(policy_forms())))
    return from_data(Options, data, "options", policy_forms(ask))


def test_every_field_of_options_travels():
    requested = OPTIONS
    plain = Options()
    for field in fields(Recipe):
        assert getattr(requested.recipe, field.name) != getattr(Recipe({}), field.name), field.name
    for field in fields(Options):
        differs = getattr(requested, field.name) != getattr(plain, field.name)
        assert differs, f"give {field.name} a value here that is no default"
    found = travelled(requested, lambda name: pytest.fail(name))
    assert found == requested


def test_a_policy_of_others_stays_in_the_parent():
    stand_in = FirstIsBest("stands in")
    requested = replace(OPTIONS, policy=FewestSteps("mine"))
    found = travelled(requested, lambda name: replace(stand_in, name=name))
    assert found.policy == FirstIsBest("mine")


@pytest.mark.parametrize("inputs", [None, [], [(2, None)], [(), np.zeros((3, 4), np.float32)]])
def test_shapes_travel(inputs):
    job = travelling(Job.of("func.func @main() {\n}", inputs, replace(OPTIONS, outputs=())))
    found = job_of(request(COMPILE, job), load_policy).inputs
    expected = None if inputs is None else [tuple(getattr(i, "shape", i)) for i in inputs]
    assert found == expected


@pytest.mark.parametrize(
    "source",
    [
        OnnxFile(Path("model.onnx"), islands=True, outputs=("y",)),
        OnnxBytes(b"model", islands=True, outputs=("y",)),
        MlirFile(Path("model.mlir"), function="score"),
        MlirText("module {}", function="score"),
        Bytecode(b"ML\xefR"),
        Packed(b"module {}", "foreign", is_foreign=True, function="score"),
    ],
)
def test_sources_travel(source):
    job = travelling(Job(source, None, OPTIONS))
    assert job_of(request(COMPILE, job), load_policy).source == source


def test_a_function_travels_as_its_module():
    inputs = [pyc_mlir.TensorSpec("f32", 2)]
    job = travelling(Job.of(np.tanh, inputs, replace(OPTIONS, function="", outputs=())))
    found = job_of(request(COMPILE, job), load_policy)
    assert isinstance(found.source, Packed) and found.source.name == "tanh"
    assert found.inputs is None


def artifact() -> Artifact:
    decision = Decision(
        Site("pass", "op", "loc"),
        "a",
        (Alternative("a", Cost(1.0, 2, 3, 4), "why"), Alternative("b")),
        "heuristic",
        (Note("seen"),),
        (Reason("", "why"),),
        {"seconds": 0.5},
    )
    signature = Signature((SignatureEntry("x", np.dtype(np.float32), (2, "n")),), ())
    clause = ClauseReport(
        "fallbacks", ("iree",), Status.CHECKED, (Note("told"),), measured={"s": 1.0}
    )
    verification = Verification("hash", {"cpu": "c"}, 2, 2, 0.5)
    oracle = ForeignOracle(b"code", "main", signature)
    checks = Checks(oracle, verification, (clause,))
    manifest = make_manifest(Target.named("cpu"), signature, "")
    return Artifact(b"vmfb", manifest, (decision,), b"module", b"memory", b"samples", checks)


def test_artifacts_travel_with_checks():
    made = artifact()
    found = artifact_of(read_frame(joined(artifact_frame(made))))
    assert found == made
    assert found.checks == made.checks
    with_numpy = replace(made, checks=Checks(PycOracle(b"module", "f")))
    found = artifact_of(read_frame(joined(artifact_frame(with_numpy))))
    assert found.checks == with_numpy.checks
    assert artifact_of(artifact_frame(replace(made, checks=None))).checks == Checks()


@pytest.mark.parametrize("code", sample(list(ReasonCode), 5))
def test_errors_travel(code):
    found = error_of(read_frame(joined(error_frame(PycError(code, "where: why")))))
    assert (found.code, found.message) == (code, "where: why")
    output_text = [IreeDiagnostic("error", "no", 'loc("a")', ("note",))]
    found = error_of(error_frame(CompileError(code, "where: why", output_text)))
    assert isinstance(found, CompileError)
    assert found.diagnostics == tuple(output_text)
    break_ = GraphBreak("n", "LSTM", code, "unknown", 2, "rnn")
    report = ImportReport(3, "nodes", "m.onnx", (break_,), flops=9, lost_flops=2)
    found = error_of(read_frame(joined(error_frame(UnsupportedModel(report)))))
    assert isinstance(found, UnsupportedModel)
    assert (found.code, found.report) == (code, report)
    assert str(found) == str(UnsupportedModel(report))


# Command lines are read before a worker is asked.
@pytest.mark.parametrize(
    "error",
    [e for e in ERRORS if not isinstance(e, UsageError)],
    ids=lambda e: type(e).__name__,
)
def test_every_kind_of_error_travels_with_its_fields(error):
    found = error_of(read_frame(joined(error_frame(error))))
    assert type(found) is type(error) and str(found) == str(error) and found.args == error.args
    assert vars(found) == vars(error)


def test_errors_of_a_worker_keep_their_kinds():
    contract = Contract(max_compile_seconds=120, memory_budget_bytes=64)
    with pytest.raises(BudgetNotKept) as caught:
        pyc_mlir.compile(lambda x: x @ x + 1, [np.ones((8, 8), np.float32)], contract=contract)
    assert caught.value.smallest > 64 and caught.value.budget.total == 64
    kind = "refusal of a kind that others have made"
    own = type("Own", (VerificationError,), {})(kind)
    assert type(error_of(error_frame(own))) is VerificationError


STAGES = [
    ({}, (CHEAPEST,)),
    ({"also_modes": ["memory_first"]}, (CHEAPEST, DEFAULT)),
    ({"plans": 2}, (CHEAPEST, DEFAULT)),
    ({"planner_mode": "memory_first"}, (CHEAPEST, DEFAULT)),
    ({"planner_mode": "iree"}, (CHEAPEST,)),
    ({"contract": Contract(determinism="strict")}, ()),
    ({"contract": Contract(fallbacks=("none",))}, ()),
    ({"contract": Contract(memory_budget_bytes=1 << 20)}, ()),
    ({"contract": Contract(memory_budget_bytes=1 << 20), "policy": "memory_first"}, (CHEAPEST,)),
]


@pytest.mark.parametrize(("requested", "stages"), STAGES)
def test_which_stages_there_are(requested, stages):
    assert stages_below(make_options(**requested)) == stages


def test_stages_keep_what_the_contract_needs():
    contract = Contract(max_error="rounding", fallbacks=("modes",), memory_budget_bytes=1 << 30)
    requested = make_options(contract=contract, also_modes=["memory_first"], kernels="rows")
    for stage in (DEFAULT, CHEAPEST):
        found = at_stage(requested, stage)
        assert found.contract == contract
        assert found.also_modes == ("memory_first",)
        assert found.planner_modes == ("balanced",)
        assert found.kernels == "rows"


def test_a_recipe_that_names_its_stage_has_no_other():
    log = [Decision(Site("compile-stage", "module"), CHEAPEST, (Alternative(CHEAPEST),), "x")]
    assert stages_below(make_options(recipe=Recipe.from_log(log))) == ()


def test_the_fewest_steps():
    policy = FewestSteps()
    entry, fusion = Site("arena-entry", "m"), Site("iree-fusion", "m")
    assert policy.prefer(entry, [Alternative("made"), Alternative("none")]) == "none"
    assert policy.prefer(entry, [Alternative("made")]) == "made"
    assert policy.prefer(fusion, [Alternative("aggressive"), Alternative("plain")]) == "plain"
    assert policy.prefer(Site("x", "y"), [Alternative("a"), Alternative("none")]) == "a"
