"""Several plans for shapes in one artifact: shared weights, equal numbers, who served a call."""

import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from pyc_mlir import Contract, Tensor, TensorSpec, compile, jit, nn
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.compile_log import recipe_at
from pyc_mlir.compilation.attempts import build_here
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.compilation.specialize import merged
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.explain.facts import ExplainedProgram

SYNC = Device("local-sync")
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(256, 256)).astype(np.float32) / 16
DIMS = {"batch": (1, 64)}
PLANS = "batch=1;batch=2:8;batch=64"


def product(x: Tensor["f32", "batch", 256]):  # noqa: F821
    return nn.softmax(np.maximum(x @ WEIGHT, 0) @ WEIGHT)


def rows(x: Tensor["f32", 256, "length"]):  # noqa: F821
    """The greatest of rows of unknown length has no kernel, that of a known one does."""
    return np.argmax(x, axis=1)


@cache
def general() -> Program:
    return compile(product, dims=DIMS, device=SYNC, cache=False)


@cache
def planned() -> Program:
    return compile(product, dims=DIMS, plans=PLANS, device=SYNC, cache=False, check=True)


def fresh() -> Program:
    return Program(planned().artifact, SYNC)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 256)).astype(np.float32)


def refused(call) -> PycError:
    with pytest.raises(PycError) as caught:
        call()
    return caught.value


def decision(program: Program):
    (found,) = [d for d in program.artifact.decisions if d.site.pass_name == "shape-plans"]
    return found


def test_each_call_is_served_by_the_first_plan_that_covers_it():
    program = fresh()
    assert program.shape_plans == ("batch=1", "batch=2:8", "batch=64")
    for count in (1, 2, 5, 8, 9, 63, 64, 1):
        assert np.allclose(program(images(count)), general()(images(count)), atol=1e-6)
    assert program.stats().served == {"balanced": 2, "batch=1": 2, "batch=2:8": 3, "batch=64": 1}
    assert "calls by plan: balanced: 2, batch=1: 2" in repr(program.stats())
    for count in (0, 65):
        assert refused(lambda c=count: program(images(c))).code is ReasonCode.DIMENSION_OUT_OF_RANGE


def test_weights_are_stored_and_resident_once():
    one, several = general().artifact, planned().artifact
    assert several.account.constants == one.account.constants
    assert len(several.vmfb) - len(one.vmfb) < WEIGHT.nbytes / 4
    assert planned().artifact.account.transients == one.account.transients


def test_results_are_written_to_memory_of_the_caller():
    program = fresh()
    for count in (1, 4, 64, 20):
        want, out = general()(images(count)), np.zeros((count, 256), np.float32)
        assert program(images(count), out=out) is out
        assert np.allclose(out, want, atol=1e-6)
        x = to_device(images(count), SYNC)
        memory = to_device(np.zeros((count, 256), np.float32), SYNC)
        for _ in range(2):
            assert program(x, out=memory) is memory
            assert np.allclose(program(x).numpy(), want, atol=1e-6)


def test_the_manifest_names_plans_and_they_travel():
    found = planned().artifact.manifest.shape_plans
    assert [p.ranges["batch"] for p in found] == [(1, 1), (2, 8), (64, 64)]
    assert [p.function for p in found] == [f"main$shapes{i}" for i in range(3)]
    again = Program(artifacts.from_bytes(artifacts.to_bytes(planned().artifact)), SYNC)
    assert again.shape_plans == planned().shape_plans
    assert again(images(1)).tobytes() == planned()(images(1)).tobytes()
    assert decision(planned()).chosen == PLANS
    facts = dict(ExplainedProgram.of("p", planned().artifact, planned().artifact.decisions).facts())
    assert facts["plans"].startswith(f"for shapes {PLANS.replace(';', '; ')}")
    assert "3 of 3 plans for shapes agree" in str(planned().stats().check)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"function": "main$other"}, "expected a function"),
        ({"ranges": {"depth": (1, 1)}}, "dimensions of"),
        ({"ranges": {"batch": (2, 2)}}, "expected of `main"),
        ({"arena_bytes": 7}, "expected an arena of 7 bytes"),
        ({"ranges": {}}, "a function with ranges"),
        ({"ranges": {"batch": (2, 1)}}, "ranges of sizes"),
        ({"function": "main$shapes1"}, "functions of their own"),
        ({"arena_bytes": -1}, "bytes or null"),
    ],
)
def test_manifests_that_lie_are_refused(change, text):
    artifact = planned().artifact
    first, *others = artifact.manifest.shape_plans
    plans = (replace(first, **change), *others)
    manifest = replace(artifact.manifest, shape_plans=plans)

    def load() -> None:
        changed = replace(artifact, manifest=manifest)
        Program(artifacts.from_bytes(artifacts.to_bytes(changed)), SYNC)

    error = refused(load)
    assert error.code is ReasonCode.BAD_ARTIFACT and text in str(error)


def test_plans_that_pay_are_found():
    program = compile(rows, dims={"length": (8, 256)}, plans="auto", device=SYNC, cache=False)
    assert 0 < len(program.shape_plans) <= 4
    for length in (8, 9, 128, 256):
        x = RNG.normal(size=(256, length)).astype(np.float32)
        assert np.array_equal(program(x), np.argmax(x, axis=1))
    two = compile(rows, dims={"length": (8, 256)}, plans=2, device=SYNC, cache=False)
    assert len(two.shape_plans) == 2


def test_what_does_not_pay_is_told():
    program = compile(
        lambda x: x + 1, [TensorSpec("f32", None, 4)], device=SYNC, cache=False, plans="auto"
    )
    assert program.shape_plans == ()
    assert "NO_SHAPE_PLANS: no dynamic dimension has a range" in str(decision(program).grounds[-1])
    line = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {"
    text = f"{line}\n  return %x : tensor<4xf32>\n}}"
    foreign = compile(text, device=SYNC, cache=False, plans=2)
    assert foreign.shape_plans == () and decision(foreign).chosen == "none"


def test_a_trace_tells_the_frequent_shapes(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("length,count\n100,50\n33,40\n7,1\n5000,9\n")
    options = {"dims": {"length": (1, 512)}, "device": SYNC, "cache": False}
    program = compile(rows, shapes=trace, plans=2, **options)
    assert program.shape_plans == ("length=33", "length=100")
    trace.write_text("depth\n3\n")
    error = refused(lambda: compile(rows, shapes=str(trace), **options))
    assert error.code is ReasonCode.BAD_ARGUMENT and "got 'depth'" in str(error)
    missing = tmp_path / "none.csv"
    assert refused(lambda: compile(rows, shapes=missing, **options)).code is ReasonCode.FILE_ACCESS


def test_sizes_that_no_call_has_are_refused():
    for plans, text in (
        ("depth=1", "got 'depth'"),
        ("batch=65", "expected sizes of `batch` from 1 to 64, got 65 to 65"),
        ("batch=0:4", "got 0 to 4"),
        ("fast", "expected `auto`"),
        ("-1", "expected 0 to 32 plans"),
        (99, "expected 0 to 32 plans"),
    ):
        error = refused(lambda p=plans: compile(product, dims=DIMS, plans=p, cache=False))
        assert error.code is ReasonCode.BAD_ARGUMENT and text in str(error)


def test_a_recipe_repeats_the_plans_without_the_trace(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("length\n100\n100\n33\n")
    dims = {"length": (1, 512)}
    made = compile(rows, dims=dims, shapes=trace, plans=1, device=SYNC, cache=False)
    made.save(tmp_path / "made.vmfb")
    recipe = recipe_at(tmp_path / "made.vmfb")
    again = compile(rows, dims=dims, plans=1, recipe=recipe, device=SYNC, cache=False)
    assert again.shape_plans == made.shape_plans == ("length=100",)
    assert artifacts.to_bytes(again.artifact) == artifacts.to_bytes(made.artifact)


def test_every_plan_keeps_the_budget():
    contract = Contract(memory_budget_bytes=600_000)
    options = {"dims": DIMS, "device": SYNC, "cache": False, "contract": contract}
    program = compile(product, plans=PLANS, **options)
    assert program.shape_plans == planned().shape_plans
    for count in (1, 8, 64):
        assert np.allclose(program(images(count)), general()(images(count)), atol=1e-6)
        transients = program.artifact.account.transients
        assert transients is not None and program.stats().arena_bytes <= transients


def test_determinism_holds_over_plans():
    contract = Contract(determinism="strict")
    first, second = (
        compile(product, dims=DIMS, plans=PLANS, contract=contract, device=SYNC, cache=False)
        for _ in range(2)
    )
    assert artifacts.to_bytes(first.artifact) == artifacts.to_bytes(second.artifact)
    for count in (1, 5, 30, 64, 1):
        assert first(images(count)).tobytes() == second(images(count)).tobytes()
    assert first.stats().served == second.stats().served


def test_results_are_compared_under_max_error():
    contract = Contract(max_error="rounding")
    program = compile(product, dims=DIMS, plans=PLANS, contract=contract, device=SYNC, cache=False)
    for count in (1, 5, 30):
        program(images(count))
    assert program.stats().comparisons == 3 and program.stats().wrong_results == 0


def test_a_wrong_plan_is_found_by_the_compile(monkeypatch):
    def once(x: Tensor["f32", "batch", 256]):  # noqa: F821
        return x @ WEIGHT

    def twice(x):
        return x @ (WEIGHT * 2)

    wrong = lower(Job.of(twice, [TensorSpec("f32", 2, 256)], make_options())).code
    name = "pyc_mlir.compilation.specialize.merged"
    monkeypatch.setattr(name, lambda general, plans: merged(general, dict.fromkeys(plans, wrong)))
    for contract in (Contract(), Contract(max_error="rounding")):
        options = make_options(plans="batch=2", check=True, contract=contract)
        error = refused(lambda o=options: build_here(Job.of(once, None, o)))
        assert error.code is ReasonCode.WRONG_RESULT
        assert "main$shapes0" in str(error)


def test_modes_beside_the_first_have_the_general_plan():
    options = {"dims": DIMS, "device": SYNC, "cache": False}
    program = compile(product, plans="batch=1", also_modes=("memory_first",), **options)
    want = general()(images(1))
    program(images(1))
    program.use_mode("memory_first")
    assert np.allclose(program(images(1)), want, atol=1e-6)
    assert program.stats().served == {"balanced": 0, "batch=1": 1, "memory_first": 1}


def test_many_threads_take_their_plans():
    program, wrong = fresh(), []

    def work(count: int) -> None:
        want = general()(images(count))
        for _ in range(50):
            if not np.allclose(program(images(count)), want, atol=1e-6):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(c,)) for c in (1, 4, 8, 20, 64, 64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert program.stats().served == {
        "balanced": 50,
        "batch=1": 50,
        "batch=2:8": 100,
        "batch=64": 100,
    }


def test_two_dimensions_and_unnamed_ones():
    def scores(q: Tensor["f32", "n", 8], k: Tensor["f32", "m", 8]):  # noqa: F821
        return nn.softmax(q @ k.T)

    options = {"device": SYNC, "cache": False}
    program = compile(scores, dims={"n": (1, 16), "m": (1, 16)}, plans="n=4,m=1:8;m=16", **options)
    for n, m in ((4, 3), (4, 16), (2, 16), (2, 2)):
        q, k = (RNG.normal(size=(s, 8)).astype(np.float32) for s in (n, m))
        assert np.allclose(program(q, k), nn.softmax(q @ k.T), atol=1e-6)
    assert program.stats().served == {"balanced": 1, "n=4,m=1:8": 1, "m=16": 2}
    unnamed = compile(
        lambda x: nn.softmax(x), [TensorSpec("f32", None, 8)], plans="x[0]=4", **options
    )
    x = RNG.normal(size=(4, 8)).astype(np.float32)
    assert np.allclose(unnamed(x), nn.softmax(x), atol=1e-6)
    assert unnamed.stats().served["x[0]=4"] == 1


def test_jit_compiles_one_program_with_plans():
    fast = jit(dims=DIMS, plans="batch=1", device=SYNC, cache=False)(product)
    for count in (1, 5, 1):
        assert np.allclose(fast(images(count)), general()(images(count)), atol=1e-6)
    ((program, *_),) = fast._programs.values()
    assert program.stats().served == {"balanced": 1, "batch=1": 2}
