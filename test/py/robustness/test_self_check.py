"""Every compile checks its own program: what is compared, what is not, what a difference does."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import threadpoolctl
import wrong_kernels
from faults import cancelling
from refusals import refused

import pyc_mlir
from pyc_mlir import CompileOptions, Contract, ReasonCode, TensorSpec, nn, trace
from pyc_mlir.api import build, notices
from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.test_vectors import EDGES, FINITE_EDGES, make_inputs
from pyc_mlir.artifact.verification import SelfCheck, Unchecked
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.compilation import contract_check, references
from pyc_mlir.compilation.contract_check import WrongResult
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options, resolve
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.frontends.python.recording import Effects
from pyc_mlir.pipelines.choices.choices import FALLBACK, Alternative, Recipe, Site
from pyc_mlir.pipelines.choices.contract import ROUNDING
from pyc_mlir.pipelines.kernels.families.conv import winograd
from pyc_mlir.pipelines.kernels.lang.attributes import IREE
from pyc_mlir.pipelines.linalg.functions import Number
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools import pyc_compile, pyc_explain

ON = make_options(check=True)
X = np.ones((4, 8), np.float32)
FOREIGN = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = math.tanh %x : tensor<?xf32>
  return %0 : tensor<?xf32>
}"""
PYC = """func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "pyc.tanh"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}"""
drawn: list[int] = []
generator = np.random.default_rng(0)


def rows(x: Any) -> Any:
    return nn.softmax(x * 2 + 1)


def check_of(artifact: Artifact) -> SelfCheck:
    assert artifact.checks is not None and artifact.checks.check is not None
    return artifact.checks.check


def test_it_is_on_by_default_and_can_be_switched_off():
    asked = (None, True, False)
    for variable, wanted in (("", (True, True, False)), ("0", (False, True, False))):
        environment = {"PYC_CHECK": variable}
        got = tuple(resolve(CompileOptions(check=c), None, environment).check for c in asked)
        assert got == wanted
    bad = {"PYC_CHECK": "no"}
    refused(
        ReasonCode.BAD_ARGUMENT, lambda: resolve(CompileOptions(), None, bad), match="PYC_CHECK"
    )


def blas_threads() -> set[int]:
    found = threadpoolctl.threadpool_info()
    return {library["num_threads"] for library in found if library["user_api"] == "blas"}


def test_references_compute_on_one_blas_thread(monkeypatch):
    seen, honest = [], OPS["matmul"].reference

    def reference(lhs: Any, rhs: Any) -> Any:
        seen.append(blas_threads())
        return honest(lhs, rhs)

    monkeypatch.setattr(OPS["matmul"], "reference", staticmethod(reference))
    with threadpoolctl.threadpool_limits(2, "blas"):
        build(lambda x: x @ X.T, [X], ON)
        assert seen and all(threads == {1} for threads in seen)
        assert blas_threads() == {2}, "as many as before"


def test_compiles_at_once_leave_as_many_blas_threads_as_before(monkeypatch):
    with threadpoolctl.threadpool_limits(2, "blas"), ExitStack() as first:
        first.enter_context(references.one_blas_thread())
        with references.one_blas_thread():
            first.close()
            assert blas_threads() == {1}, "another compile is still within"
        assert blas_threads() == {2}
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "threadpoolctl", None)
            with references.one_blas_thread():
                assert blas_threads() == {2}, "without the package nothing changes"
        with references.one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_the_program_is_compared_and_its_bytes_are_the_same():
    made, without = (build(rows, [X], make_options(check=c)) for c in (True, False))
    check = check_of(made)
    assert (check.unchecked, check.done, len(check.sizes)) == (None, 3, 3) and 0 <= check.worst < 1
    assert "agrees with 3 of 3 samples" in check.function
    assert check_of(without).unchecked is Unchecked.OFF
    assert to_bytes(made) == to_bytes(without)
    assert made.checks is not None and made.checks.expected is None, "not kept"
    assert from_data(SelfCheck, to_data(check)) == check


def test_dynamic_dimensions_have_several_sizes():
    program = pyc_mlir.compile(rows, [TensorSpec("f32", "n", 8)], check=True)
    check = program.stats().check
    assert check is not None and [s["n"] for s in check.sizes] == [5, 18, 1]
    assert "n = 5; n = 18" in str(check) and "self-check" in repr(program.stats())


def test_each_argument_of_the_last_sample_has_all_edge_values():
    specs = [TensorSpec(d, 3, 4) for d in ("f32", "f16", "f64", "bf16", "i8", "f32")]
    made = build(lambda *xs: [x + x for x in xs], specs, make_options(check=False))
    for seed in (EDGES, FINITE_EDGES):
        for x in make_inputs(made.signature, seed, {}):
            if x.dtype == np.int8:
                assert {0, 1, -128, 127} <= set(x.ravel().tolist())
                continue
            wide = x.astype(np.float64).ravel()
            assert set(np.signbit(wide[wide == 0])) == {True, False}
            special = set(map(str, wide[~np.isfinite(wide)]))
            assert special == ({"nan", "inf", "-inf"} if seed == EDGES else set())


def spelled_out(x: Any, *weights: Any) -> list[Any]:
    """Forms that exporters write, behind products: f16 leaves its range and has subnormal numbers.

    Each has a product of its own, so that composites are found.
    """
    one = x.dtype.type(1)
    a, b, c, d, e, f = (x @ w for w in weights)
    high = np.exp(c - c.max(-1, keepdims=True))
    return [
        one / (one + np.exp(-a)),
        b * (one / (one + np.exp(-b))),
        high / high.sum(-1, keepdims=True),
        np.floor(nn.silu(d)),
        np.rint(nn.gelu(e)),
        f * nn.sigmoid(f),
    ]


@pytest.mark.parametrize(
    "kind", ["f16", *(pytest.param(k, marks=pytest.mark.full) for k in ("bf16", "f32", "f64"))]
)
def test_activations_that_are_spelled_out_are_right(kind):
    dtype = DTYPES[kind]
    draw = np.random.default_rng(0)
    weights = [(draw.standard_normal((64, 64)) * 4).astype(dtype) for _ in range(6)]
    made = build(lambda x: spelled_out(x, *weights), [TensorSpec(kind, 16, 64)], ON)
    check = check_of(made)
    assert check.done == 3 and "agrees with 3 of 3" in check.function


def test_a_decomposition_that_cancels_near_zero_is_refused(monkeypatch):
    monkeypatch.setattr(OPS["silu"], "decompose", staticmethod(cancelling))
    plain = make_options(check=True, kernels="iree")
    refused(ReasonCode.WRONG_RESULT, lambda: build(nn.silu, [TensorSpec("f32", 4, 8)], plain))


@dataclass(frozen=True)
class TakesWrong:
    """A policy that takes kernels that compute the wrong thing."""

    name: str = "takes-wrong"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Those of the family `wrong` first."""
        names = [a.name for a in alternatives]
        return next((n for n in names if n.startswith(wrong_kernels.NAME)), names[0])


def test_iree_takes_the_place_of_a_kernel_that_is_wrong(monkeypatch):
    wrong_kernels.register(monkeypatch)
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    options = make_options(check=True, policy=TakesWrong())
    made = build(nn.softmax, [x], options)
    (given_up,) = [d for d in made.decisions if d.decided_by == FALLBACK]
    assert given_up.chosen == IREE and "wrong:softmax" in str(given_up.grounds)
    (told,) = [e for e in notices(made, options) if e.name == "kernels"]
    assert told.reasons[0].code == "WRONG_RESULT" and "softmax" in told.reasons[0].message
    assert np.allclose(Program(made, Device("local-sync"))(x), nn.softmax(x), atol=1e-6)
    strict = make_options(check=True, policy=TakesWrong(), contract=Contract(fallbacks=("none",)))
    refused(ReasonCode.FALLBACK_REFUSED, build, nn.softmax, [x], strict)


def test_iree_takes_the_place_of_a_wrong_kernel_that_needs_a_layout(monkeypatch):
    """The layout and the fusion that the kernel needs are blamed with it, and stay."""
    honest = winograd.Filtering._outputs

    def moved(self, place, sums, lanes):
        return honest(self, place, sums + 1, lanes)

    monkeypatch.setattr(winograd.Filtering, "_outputs", moved)
    weights = np.random.default_rng(1).normal(size=(64, 64, 3, 3)).astype(np.float32)

    def network(x):
        return nn.relu(nn.conv2d(x, weights, pads=(1, 1, 1, 1)))

    made = build(network, [TensorSpec("f32", 1, 64, 20, 20)], make_options(check=True))
    given_up = [d for d in made.decisions if d.decided_by == FALLBACK]
    assert [d.chosen for d in given_up] == [IREE]
    assert "winograd:conv2d+relu" in str(given_up[0].grounds)


def test_a_wrong_program_is_refused_with_the_decision_to_blame(monkeypatch):
    wrong_kernels.register(monkeypatch)
    x = np.ones((8, 64), np.float32)
    unchecked = build(nn.softmax, [x], make_options(check=False, policy=TakesWrong()))
    assert "wrong:softmax" in [d.chosen for d in unchecked.decisions]
    wrong = make_options(check=True, recipe=Recipe.from_log(unchecked.decisions))
    error = refused(ReasonCode.WRONG_RESULT, build, nn.softmax, [x], wrong, match="check=False")
    assert isinstance(error, WrongResult)
    assert [d.chosen for d in error.blamed] == ["wrong:softmax"] and "wrong:softmax" in str(error)


@pytest.mark.full
def test_samples_have_indices_far_out_of_range(monkeypatch):
    """A gather without its clamp reads foreign memory: ends of the index type lead there."""
    table, at = TensorSpec("f32", 1000, 8), TensorSpec("i64", 8)
    calls = (lambda x, i: x[i], [table, at]), (lambda i, x: x[i], [at, table])
    build(*calls[0], ON)
    for bound in ("at_least", "at_most"):
        monkeypatch.setattr(Number, bound, lambda index, bound: index)
    for function, inputs in calls:
        refused(ReasonCode.WRONG_RESULT, build, function, inputs, ON, match="sample 3")


def expected(source: Any, inputs: Sequence[Any] | None = None) -> Any:
    found = lower(Job.of(source, inputs, ON), expect=True).answers.expected
    assert found is not None
    return found


def test_small_sizes_do_where_the_first_ones_take_long(monkeypatch):
    sizes = []
    for more in (references.MORE_WORK, 1):
        monkeypatch.setattr(references, "MORE_WORK", more)
        found = expected(lambda x: x @ x.T, [TensorSpec("f32", "n", 4096)])
        sizes.append([s.sizes["n"] for s in found.samples.samples])
    assert sizes == [[5, 18, 1], [2]]


def test_what_is_not_checked_says_why():
    w = np.zeros((2048, 2048), np.float32)
    large = TensorSpec("f32", 5000, 5000)
    for function, inputs in ((lambda x: (x @ w) @ w, [w]), (lambda x: x + 1, [large])):
        found = expected(function, inputs)
        assert found.unchecked is Unchecked.OVER_BUDGET and found.work == 0 and found.why
    assert expected(FOREIGN).unchecked is Unchecked.NO_REFERENCE
    assert lower(Job.of(rows, [X], ON)).answers.expected is None, "only where it is asked for"
    elsewhere = build(rows, [X], make_options(check=True, target="cpu-neon"))
    assert str(check_of(elsewhere)) == "not checked: no device for the target (cpu-neon)"
    contract = Contract(max_error=ROUNDING)
    compared = build(rows, [X], make_options(check=True, contract=contract)).checks
    assert compared is not None and compared.check is None and compared.verification is not None


def draws(x: Any) -> Any:
    return x + generator.normal()


def notes(x: Any) -> Any:
    drawn.append(1)
    return x + 1


def test_a_function_with_effects_is_not_called(monkeypatch):
    for function, text in ((notes, "changes `drawn`"), (draws, "random numbers from `generator`")):
        check = check_of(build(function, [X], ON))
        assert check.done == 3 and text in check.function
    assert len(drawn) == 1, "it was traced"
    count = 0

    def counts(x: Any) -> Any:
        nonlocal count
        count += 1
        return x

    def assigns(x: Any) -> Any:
        counts.last = x
        return x

    def draws_globally(x: Any) -> Any:
        return x + np.random.normal()

    def own_lists(x: Any) -> Any:
        made = []
        made.append(x)
        return made

    for function, text in ((counts, "`count`"), (assigns, "`last`"), (draws_globally, "random")):
        effects = Effects(function)
        trace(function, X)
        assert text in effects.found()
    assert not Effects(own_lists).found() and not Effects(rows).found()


def test_a_function_that_is_traced_otherwise_is_refused():
    def odd(x: Any) -> Any:
        return x + 1 if isinstance(x, np.ndarray) else x

    refused(ReasonCode.TRACE_MISMATCH, build, odd, [X], ON)


def test_a_cache_entry_is_checked_once(tmp_path, monkeypatch):
    first = build(rows, [X], ON, cache=Cache(CacheStore(tmp_path)))
    monkeypatch.setattr(contract_check, "self_check", None)
    found = build(rows, [X], ON, cache=Cache(CacheStore(tmp_path)))
    assert found.cached is not None and found.cached.outcome == "hit"
    kept = check_of(found)
    assert (kept.done, kept.worst) == (3, check_of(first).worst)
    for side in tmp_path.rglob("*self-check-*"):
        side.unlink()
    found = build(rows, [X], ON, cache=Cache(CacheStore(tmp_path)))
    assert check_of(found).unchecked is Unchecked.NO_RECORD


def test_a_worker_checks_what_is_not_trusted(monkeypatch):
    monkeypatch.setattr(contract_check, "self_check", None)
    assert check_of(build(rows, [X], ON, untrusted=True)).done == 3


def test_the_tools_tell_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mlir").write_text(PYC)
    line = ["m.mlir", "--log", "m.jsonl", "-v", "-o"]
    assert pyc_compile.run([*line, "checked.vmfb", "--check"]) == 0
    assert "self-check checked: 3 of 3 samples agree" in capsys.readouterr().out
    assert pyc_explain.main(["m.jsonl"]) == 0
    assert "3 of 3 samples agree with the numpy references" in capsys.readouterr().out
    assert pyc_compile.run([*line, "other.vmfb", "--no-check"]) == 0
    assert "not checked: switched off" in capsys.readouterr().out
    assert (tmp_path / "checked.vmfb").read_bytes() == (tmp_path / "other.vmfb").read_bytes()
