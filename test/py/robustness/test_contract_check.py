"""Contracts over whole compiles: what is reported, compared, refused, and what stands in."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contract_program import LARGE, TEXT, W, X, reference
from faults import fault, without_aggressive_fusion
from refusals import refused

import pyc_mlir
from pyc_mlir import Contract, Program, ReasonCode
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.compile_log import head_of, read_compile_log
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.artifact.test_vectors import SIZES, candidate_sizes, make_inputs
from pyc_mlir.artifact.verification import Verification
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.compilation import lower as lowering
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.pipelines.choices.contract import ROUNDING, STRICT, Status
from pyc_mlir.pipelines.choices.log import write_log
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.monitor import Code, Monitor
from pyc_mlir.runtime.plans import Serving, Ways
from pyc_mlir.tools import pyc_compile, pyc_explain, pyc_run
from pyc_mlir.tools.explain.why import why

FOREIGN = """func.func @main(%a: tensor<5x37xf32>, %b: tensor<37x11xf32>) -> tensor<5x11xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<5x11xf32>
  %f = linalg.fill ins(%z: f32) outs(%e: tensor<5x11xf32>) -> tensor<5x11xf32>
  %r = linalg.matmul ins(%a, %b: tensor<5x37xf32>, tensor<37x11xf32>)
    outs(%f: tensor<5x11xf32>) -> tensor<5x11xf32>
  %t = math.{} %r : tensor<5x11xf32>
  %d = tensor.cast %t : tensor<5x11xf32> to tensor<?x11xf32>
  %u = tensor.cast %d : tensor<?x11xf32> to tensor<5x11xf32>
  return %u : tensor<5x11xf32>
}}
"""  # With a size that is not known it stays IREE's.


@pytest.fixture(scope="module")
def honest() -> Artifact:
    """The program under `max_error`; each `Program` of it counts for itself."""
    return build(TEXT, None, make_options(contract=Contract(max_error=ROUNDING)))


@pytest.fixture(scope="module")
def faulty() -> Iterator[Artifact]:
    """A program whose samples agree, and that is wrong for large values."""
    contract = Contract(max_error=ROUNDING, fallbacks=("iree", "numpy"))
    with pytest.MonkeyPatch.context() as patch:
        fault(patch, "5.000000e+02", "6.000000e+02")
        yield build(TEXT, None, make_options(contract=contract))


def under(artifact: Artifact, *fallbacks: str) -> Program:
    """The program as if its contract named these fallbacks."""
    return Program(artifact.noted(contract=Contract(max_error=ROUNDING, fallbacks=fallbacks)))


def test_every_clause_is_reported():
    contract = Contract(
        max_concurrency=2,
        determinism=STRICT,
        max_error=1e-5,
        latency_goal_seconds=1e3,
        allowed_targets=("cpu",),
        fallbacks=("none",),
    )
    program = pyc_mlir.compile(TEXT, contract=contract)
    report = program.stats().contract
    assert {c.clause: c.status for c in report.clauses} == {
        "max_concurrency": Status.PROVEN,
        "determinism": Status.SAMPLED,
        "max_error": Status.SAMPLED,
        "latency_goal_seconds": Status.CHECKED,
        "allowed_targets": Status.PROVEN,
        "fallbacks": Status.PROVEN,
    }
    assert report.holds and (report["max_error"].done, report["max_error"].of) == (2, 2)
    for _ in range(3):
        np.testing.assert_allclose(program(X, W), reference(X, W), atol=1e-5)
    stats = program.stats()
    assert (stats.contract["max_error"].done, stats.contract["max_error"].of) == (1, 3)
    assert (stats.comparisons, stats.wrong_results, stats.fallbacks) == (1, 0, ())


def test_a_budget_is_reported_with_its_bytes():
    contract = Contract(memory_budget_bytes=1 << 20)
    program = pyc_mlir.compile(TEXT, [X, W], contract=contract)
    clause = program.stats().contract["memory_budget_bytes"]
    total = program.artifact.account.total(1)
    assert clause.status is Status.PROVEN and str(total) in str(clause.evidence[0])


def test_new_shapes_are_compared_and_every_nth_call(honest):
    program = Program(honest)
    for rows in (1, 2, 2, 1, 3):
        program(np.ones((rows, 8), np.float32), W)
    assert program.stats().comparisons == 3
    program.compare_every(1)
    program(X, W)
    assert program.stats().comparisons == 4
    loaded = Program(replace(honest, checks=None))
    refused(ReasonCode.NO_ORACLE, loaded.compare_every, 1)


def test_a_wrong_program_is_not_made(monkeypatch):
    fault(monkeypatch, "pyc.tanh", "pyc.erf")
    contract = Contract(max_error=0.5)
    refused(ReasonCode.WRONG_RESULT, pyc_mlir.compile, TEXT, contract=contract, match="sample 0")


def test_max_error_is_a_limit_of_its_own():
    """Rounding explains the difference, the contract does not allow it."""
    refused(
        ReasonCode.WRONG_RESULT,
        lambda: pyc_mlir.compile(TEXT, contract=Contract(max_error=1e-12)),
        match="within",
    )


@pytest.mark.parametrize("on_device", [False, True])
def test_a_wrong_first_answer_does_not_leave(faulty, on_device):
    program = under(faulty)
    args = [to_device(a, program.device) if on_device else a for a in (LARGE, W * 1e-3)]
    for count in (1, 2):
        refused(ReasonCode.WRONG_RESULT, program, *args)
        assert program.stats().wrong_results == count
    refused(ReasonCode.WRONG_RESULT, lambda: under(faulty, "none")(*args))


@pytest.mark.parametrize("name", ["iree", "numpy"])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.sampled(3)
def test_a_fallback_answers_from_the_first_wrong_call_on(faulty, name, on_device):
    program, small = under(faulty, name), W * 1e-3
    args = [to_device(a, program.device) if on_device else a for a in (LARGE, small)]
    for _ in range(2):
        got = program(*args)
        assert isinstance(got, np.ndarray) is not on_device
        np.testing.assert_allclose(np.asarray(got), reference(LARGE, small), atol=1e-5)
    stats = program.stats()
    assert stats.wrong_results == 1 and [f.name for f in stats.fallbacks] == [name]
    assert stats.contract["max_error"].code == ReasonCode.FALLBACK_TAKEN.name
    assert stats.contract["fallbacks"].code == ReasonCode.FALLBACK_TAKEN.name


@pytest.mark.full
def test_a_fallback_at_compile_time_is_what_is_made(monkeypatch):
    fault(monkeypatch, "pyc.tanh", "pyc.erf")
    contract = Contract(max_error=ROUNDING, fallbacks=("iree",))
    program = pyc_mlir.compile(TEXT, contract=contract)
    (decision,) = [d for d in program.artifact.decisions if d.site.pass_name == "oracle"]
    assert (decision.chosen, decision.decided_by) == ("iree", "fallback")
    assert ReasonCode.FALLBACK_TAKEN.name in decision.grounds[0].codes
    np.testing.assert_allclose(program(X, W), reference(X, W), atol=1e-5)
    assert program.stats().fallbacks == ()


def test_other_plans_stand_in_bit_by_bit(monkeypatch):
    """A plan that gives wrong results is left for the next one, also under strictness."""
    contract = Contract(max_error=ROUNDING, determinism=STRICT, fallbacks=("modes",))
    artifact = build(TEXT, None, make_options(contract=contract, also_modes=["memory_first"]))
    own = Serving.ways

    def ways(self: Serving, inputs: Any, right: str = "memory_first") -> Ways:
        def one_more(run: Callable[[Any], list[np.ndarray]]) -> Callable[[Any], list[np.ndarray]]:
            return lambda inputs: [found + 1 for found in run(inputs)]

        return {
            key: run if key[0] == right else one_more(run) for key, run in own(self, inputs).items()
        }

    monkeypatch.setattr(Serving, "ways", ways)
    program = Program(replace(artifact, checks=None))
    assert program.mode == "memory_first" and program.stats().mode_switches == 1
    assert program.stats().switches[0].code is ReasonCode.FALLBACK_TAKEN
    assert list(program.modes) == ["memory_first"], "a wrong plan is not taken again"
    monkeypatch.setattr(Serving, "ways", lambda self, inputs: ways(self, inputs, "none"))
    refused(
        ReasonCode.WRONG_RESULT,
        lambda: Program(replace(artifact, checks=None)),
        match="tried: modes: memory_first",
    )
    # A plan that is not in use yet counts too.
    monkeypatch.setattr(Serving, "ways", lambda self, inputs: ways(self, inputs, "balanced"))
    program = Program(replace(artifact, checks=None))
    assert list(program.modes) == ["balanced"] and program.stats().mode_switches == 0
    assert program.stats().contract["fallbacks"].code == ReasonCode.FALLBACK_TAKEN.name
    refused(
        ReasonCode.WRONG_RESULT,
        lambda: under(replace(artifact, checks=None), "none"),
        match="memory_first",
    )


def test_memory_of_the_caller_gets_no_wrong_answer(faulty):
    for fallbacks, code in ((), ReasonCode.WRONG_RESULT), (("iree",), ReasonCode.NO_ARENA_ENTRY):
        program, small = under(faulty, *fallbacks), W * 1e-3
        out = to_device(np.zeros((3, 8), np.float32), program.device)
        refused(code, lambda p=program, o=out, s=small: p(LARGE, s, out=o))
        assert not out.numpy().any() and program.stats().wrong_results == 1
        refusals = [d for d in program.log() if d.chosen == "refused"]
        assert any(code.name in d.reasons[0].codes for d in refusals)
    np.testing.assert_allclose(program(LARGE, small), reference(LARGE, small), atol=1e-5)


def test_each_entry_is_compared(honest):
    program = Program(honest)
    out = to_device(np.zeros((3, 8), np.float32), program.device)
    for count, into in ((1, None), (2, out), (2, out), (2, None)):
        got = program(X, W, out=into)
        np.testing.assert_allclose(np.asarray(got), reference(X, W), atol=1e-5)
        assert program.stats().comparisons == count
    assert program.stats().contract["max_error"].of == 4


def test_what_replaced_code_answered_late_is_not_given_out(faulty):
    """A call that ends after another one has found its code wrong."""
    program, small = under(faulty, "iree"), W * 1e-3
    monitor = program._monitor
    assert monitor is not None
    code = Code(monitor.generation, program.mode, into=False)
    arrays = [to_device(a, program.device) for a in (LARGE, small)]
    late = program._serving.run(arrays)
    program(LARGE, small)
    assert np.abs(late[0].numpy() - reference(LARGE, small)).max() > 1e-3
    assert monitor.due(arrays, code)
    (got,) = monitor.compared(arrays, late, code)
    np.testing.assert_allclose(got.numpy(), reference(LARGE, small), atol=1e-5)
    assert len(program.stats().fallbacks) == 1


def test_an_entry_under_another_name_is_missed(honest):
    data = artifacts.to_bytes(honest)
    assert data.count(b"pyc/samples") == 3  # beside the data, in the directory, in the manifest
    place = data.rindex(b"pyc/samples")
    renamed = data[:place] + b"qyc" + data[place + 3 :]
    refused(ReasonCode.BAD_ARTIFACT, artifacts.from_bytes, renamed)
    everywhere = data.replace(b"pyc/samples", b"qyc/samples")
    refused(ReasonCode.BAD_ARTIFACT, artifacts.from_bytes, everywhere)


@pytest.mark.full
def test_the_reference_of_untrusted_models_is_not_asked_here():
    contract = Contract(max_error=ROUNDING)
    made = build(TEXT, None, make_options(contract=contract), untrusted=True)
    assert made.samples and made.checks is not None and made.checks.oracle is None
    program = Program(made)
    np.testing.assert_allclose(program(X, W), reference(X, W), atol=1e-5)
    assert program.stats().contract["max_error"].done == 2
    refused(ReasonCode.NO_ORACLE, program.compare_every, 1)


def test_samples_and_report_travel_in_the_file(tmp_path, honest):
    path = tmp_path / "m.vmfb"
    program = Program(honest)
    program.save(path)
    loaded = pyc_mlir.load(path)
    clause = loaded.stats().contract["max_error"]
    assert (clause.status, clause.done, clause.of) == (Status.SAMPLED, 2, 2)
    assert loaded.verification == program.verification
    read = artifacts.read(path)
    assert (read.samples, read.contract_report) == (
        program.artifact.samples,
        program.artifact.contract_report,
    )
    np.testing.assert_array_equal(loaded(X, W), program(X, W))


def test_a_damaged_sample_is_no_artifact(honest):
    wrong = replace(honest, samples=honest.samples[:-4])
    refused(
        ReasonCode.BAD_ARTIFACT,
        lambda: artifacts.from_bytes(artifacts.to_bytes(wrong)),
        match="samples",
    )


def test_a_verdict_saves_the_comparison_where_it_was_made(monkeypatch, honest):
    program = Program(honest)
    assert program.verification is not None
    record = from_data(Verification, json.loads(json.dumps(to_data(program.verification))))
    assert record == program.verification and record.passed
    artifact = replace(program.artifact, checks=None)
    compared = []
    own = Monitor._compare_samples
    monkeypatch.setattr(
        Monitor, "_compare_samples", lambda self: (compared.append(1), own(self))[1]
    )
    assert Program(artifact, verification=record).verification is record and not compared
    elsewhere = replace(record, environment={**record.environment, "cpu": "another"})
    stale = replace(record, artifact="0" * 64)
    failed = replace(record, wrong="something")
    for count, other in enumerate((elsewhere, stale, failed), start=1):
        assert (
            Program(artifact, verification=other).verification == record and len(compared) == count
        )
    with pytest.raises(ValueError, match="artifact: expected a value"):
        from_data(Verification, {"schema": 1})


def test_other_programs_are_compared_with_vmvx(monkeypatch):
    contract = Contract(max_error=1e-4)
    program = pyc_mlir.compile(FOREIGN.format("tanh"), contract=contract)
    assert "vmvx" in str(program.stats().contract["max_error"].evidence[0])
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((5, 37), (37, 11)))
    np.testing.assert_allclose(program(a, b), np.tanh(a @ b), atol=1e-5)
    assert program.stats().comparisons == 1
    honest = lowering._foreign

    def faulty(*args: Any) -> Any:
        return replace(honest(*args), code=FOREIGN.format("erf").encode())

    monkeypatch.setattr(lowering, "_foreign", faulty)
    refused(
        ReasonCode.WRONG_RESULT, lambda: pyc_mlir.compile(FOREIGN.format("tanh"), contract=contract)
    )


def test_without_sizes_to_try_there_is_no_oracle():
    text = """func.func @main(%x: tensor<?xf32> {pyc.name = "x", pyc.dims = ["n"]})
        -> tensor<?x7xf32> {
      %0 = "pyc.reshape"(%x) {shape = array<i64: -1, 7>} : (tensor<?xf32>) -> tensor<?x7xf32>
      return %0 : tensor<?x7xf32>
    }"""
    contract = Contract(max_error=1e-4)
    refused(ReasonCode.NO_ORACLE, pyc_mlir.compile, text, contract=contract, match="static")
    x = np.ones(14, np.float32)
    assert pyc_mlir.compile(text, [x], contract=contract)(x).shape == (2, 7)


def test_a_compile_that_needs_a_fallback_is_refused_under_none(monkeypatch):
    without_aggressive_fusion(monkeypatch)
    pyc_mlir.compile(TEXT)
    contract = Contract(fallbacks=("none",))
    refused(
        ReasonCode.FALLBACK_REFUSED,
        pyc_mlir.compile,
        TEXT,
        contract=contract,
        match="CODEGEN_FALLBACK",
    )


def test_a_latency_goal_binds_or_is_told(tmp_path):
    advisory = pyc_mlir.compile(TEXT, contract=Contract(latency_goal_seconds=1e-9))
    clause = advisory.stats().contract["latency_goal_seconds"]
    assert (clause.status, clause.code) == (Status.BROKEN, ReasonCode.LATENCY_MISSED.name)
    assert "measured" in artifacts.to_bytes(advisory.artifact).decode("latin-1")
    assert not advisory.artifact.contract_report["latency_goal_seconds"].measured
    advisory(*make_inputs(advisory.signature, 0, {"n": 2}))
    head = head_of(advisory.artifact, b"")
    for line, name in ((head, "51 calls"), (advisory.log()[-1], " 1 calls")):
        (measured,) = line.broken["LATENCY_MISSED"]
        assert measured.endswith(name)
        write_log((line,), tmp_path / "log")
        found = why(read_compile_log(tmp_path / "log"), ReasonCode.LATENCY_MISSED)
        assert "LATENCY_MISSED: median seconds" in found
    binding = Contract(latency_goal_seconds=1e-9, latency_binding=True)
    refused(ReasonCode.LATENCY_MISSED, pyc_mlir.compile, TEXT, contract=binding)


def test_clauses_that_need_this_machine_or_a_cpu():
    goal = Contract(latency_goal_seconds=1.0, latency_binding=True)
    options = make_options(target="cpu-neon", contract=goal)
    refused(ReasonCode.UNCHECKABLE_CLAUSE, build, TEXT, None, options, match="latency_binding")
    strict = Contract(determinism=STRICT)
    refused(
        ReasonCode.UNSUPPORTED_CLAUSE,
        make_options,
        target="cuda",
        contract=strict,
        match="determinism",
    )
    modes = Contract(max_error=ROUNDING, fallbacks=("modes",))
    refused(ReasonCode.CONTRACT_CONFLICT, make_options, contract=modes, match="also_modes")
    iree = Contract(max_error=ROUNDING, fallbacks=("iree",))
    refused(ReasonCode.CONTRACT_CONFLICT, make_options, contract=iree, kernels="iree", match="iree")


def test_another_machines_program_is_compared_where_it_is_loaded():
    options = make_options(target="cpu-neon", contract=Contract(max_error=ROUNDING))
    artifact = build(TEXT, None, options)
    assert artifact.samples and artifact.contract_report["max_error"].done == 0
    assert artifact.checks is not None and artifact.checks.verification is None


def test_unequal_bits_are_refused(monkeypatch):
    honest, count = Serving.answer, iter(range(100))

    def answer(self: Serving, inputs: Any) -> list[np.ndarray]:
        return [f + np.float32(next(count)) for f in honest(self, inputs)]

    monkeypatch.setattr(Serving, "answer", answer)
    contract = Contract(determinism=STRICT)
    refused(ReasonCode.NOT_DETERMINISTIC, pyc_mlir.compile, TEXT, contract=contract)


def test_the_tools_print_and_show_the_contract(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mlir").write_text(TEXT)
    (tmp_path / "c.toml").write_text('max_error = "rounding"\nlatency_goal_seconds = "10min"\n')
    assert pyc_compile.run(["m.mlir", "--contract", "c.toml", "-o", "m.vmfb"]) == 0
    printed = capsys.readouterr().out
    assert "max_error = rounding: sampled 2 of 2" in printed
    assert "latency_goal_seconds = 600.0: checked" in printed
    assert pyc_explain.main(["m.vmfb", "--html", "page.html"]) == 0
    assert "max_error = rounding: sampled 0 of 2" in capsys.readouterr().out
    assert "max_error" in (tmp_path / "page.html").read_text()
    run = ["m.vmfb", "--input", "x=2x8xf32=@seed:0", "--input", "w=8x8xf32=@seed:1", "--stats"]
    assert pyc_run.main(run) == 0
    assert "max_error = rounding: sampled 2 of 2" in capsys.readouterr().out


def test_a_program_from_the_cache_is_tried_again(tmp_path, monkeypatch):
    cache = Cache(CacheStore(tmp_path))
    contract = Contract(max_error=ROUNDING, latency_goal_seconds=1e3, latency_binding=True)
    options = make_options(contract=contract)
    made = build(TEXT, None, options, cache=cache)
    tried = []
    own = Monitor._compare_samples
    monkeypatch.setattr(Monitor, "_compare_samples", lambda self: (tried.append(1), own(self))[1])
    found = build(TEXT, None, options, cache=Cache(CacheStore(tmp_path)))
    assert found.cached is not None and found.cached.outcome == "hit" and tried == []
    assert found.samples == made.samples and found.contract_report == made.contract_report
    program = Program(found)
    program(X, W)
    assert program.stats().contract.holds and tried == [], "the record beside it holds here"
    assert program.stats().contract["latency_goal_seconds"].status is Status.CHECKED


def test_samples_keep_to_declared_ranges():
    given = Signature((SignatureEntry("x", np.dtype(np.float32), ("n", None)),), ())
    assert {s["n"] for s in candidate_sizes(given)} == set(SIZES)
    ranged = given.with_ranges({"n": (6, 7)})
    assert {s["n"] for s in candidate_sizes(ranged)} == {6, 7}
    assert make_inputs(ranged, 0, candidate_sizes(ranged)[0])[0].shape[0] == 6


@pytest.mark.full
def test_samples_stretch_no_dynamic_dimension():
    """A program may take an unknown size for its partner's: a sample of size 1 proves nothing."""
    text = """func.func @main(%x: tensor<?xf32> {pyc.name = "x", pyc.dims = ["n"]},
        %y: tensor<4xf32> {pyc.name = "y", pyc.dims = [""]}) -> tensor<4xf32> {
      %0 = "pyc.sub"(%x, %y) : (tensor<?xf32>, tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    for kernels in ("all", "iree"):
        program = pyc_mlir.compile(text, kernels=kernels, contract=Contract(max_error=ROUNDING))
        y = np.ones(4, np.float32)
        assert program.verification is not None and program.verification.passed
        np.testing.assert_array_equal(program(y, y), np.zeros(4))
        refused(ReasonCode.DIMENSION_MISMATCH, lambda p=program, y=y: p(y[:1], y))
