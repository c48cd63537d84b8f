"""pyc-recognize: forms that exporters write, the rules of sharing and of contracts, decisions."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from encoders import WIDTH, legacy, named
from op_modules import computing as names
from op_modules import module_of, ops_of
from spellings import KINDS, Spelling, draw, draw_near

from pyc_mlir.api import compile
from pyc_mlir.compilation.lower import context_of
from pyc_mlir.compilation.options import HIGH_LEVEL, make_options
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, TensorType, tensor
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.pipelines.choices.choices import Choices, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.recognize.recognize import KEEP

BEFORE = "pyc-canonicalize,pyc-infer-shapes"
AFTER = "pyc-recognize,pyc-canonicalize"
ROOT_2 = math.sqrt(2)
F16, F32, F64 = (DTYPES[n] for n in ("f16", "f32", "f64"))
X = tensor("f32", 2, 4, 8)
HEADS = [tensor("f32", 2, 3, 5, 4)] * 3
Body = Callable[..., Any]


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


def run(body: Body, types: list[TensorType], context: PassContext | None = None) -> ir.Module:
    """The program after the pass."""
    module = module_of(body, types, ir.Context.current)
    run_pipeline(module, BEFORE, PassContext())
    run_pipeline(module, AFTER, context or PassContext())
    assert module.operation.verify()
    return module


def plain(body: Body, types: list[TensorType]) -> ir.Module:
    """The program before the pass."""
    module = module_of(body, types, ir.Context.current)
    run_pipeline(module, BEFORE, PassContext())
    return module


@pytest.mark.parametrize("function", ["gelu", "silu"])
def test_one_composite_reads_another(function):
    """The value of the first one's root is gone when the second one is made."""

    def spelled(b: Any, x: Any) -> Any:
        if function == "silu":
            return b.div(x, b.add(b.exp(b.neg(x)), np.float32(1)))
        gate = b.add(b.erf(b.div(x, np.float32(ROOT_2))), np.float32(1))
        return b.mul(b.mul(x, gate), np.float32(0.5))

    module = run(lambda b, x: spelled(b, spelled(b, x)), [X])
    assert names(module) == [function, function]


def values(types: list[TensorType], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 2, [d or 3 for d in t.shape]).astype(t.dtype) for t in types]


def last_max(b: Any, x: Any) -> Any:
    return b.reduce_max(x, axes=(b.type_of(x).rank - 1,), keepdims=True)


def exponentials(b: Any, x: Any) -> Any:
    return b.exp(b.sub(x, last_max(b, x)))


def total(b: Any, x: Any) -> Any:
    return b.reduce_sum(x, axes=(b.type_of(x).rank - 1,), keepdims=True)


def softmax(b: Any, x: Any) -> Any:
    e = exponentials(b, x)
    return b.div(e, total(b, e))


def statistics(b: Any, x: Any) -> tuple[Any, Any]:
    """The centered values and the variance along the last axis."""
    axes = (b.type_of(x).rank - 1,)
    centered = b.sub(x, b.reduce_mean(x, axes=axes, keepdims=True))
    return centered, b.reduce_mean(b.mul(centered, centered), axes=axes, keepdims=True)


def unit_norm(b: Any, x: Any, epsilon: float = 1e-5) -> Any:
    centered, variance = statistics(b, x)
    return b.div(centered, b.sqrt(b.add(variance, b.scalar(epsilon, x))))


def flax_norm(b: Any, x: Any) -> Any:
    """Variance as E[x^2] - E[x]^2, cut at 0 as flax has it."""
    mean = b.reduce_mean(x, axes=(2,), keepdims=True)
    squares = b.reduce_mean(b.mul(x, x), axes=(2,), keepdims=True)
    variance = b.sub(squares, b.mul(mean, mean))
    factor = b.mul(b.rsqrt(b.add(variance, b.scalar(1e-6, x))), np.arange(8, dtype=np.float32))
    return b.add(b.mul(b.sub(x, mean), factor), np.ones(8, np.float32))


def llama_norm(b: Any, x: Any) -> Any:
    """As transformers writes it: in f32, the weight in the model's own type."""
    wide = b.cast(x, dtype=F32)
    squares = b.reduce_mean(b.pow(wide, b.scalar(2, wide)), axes=(2,), keepdims=True)
    normed = b.mul(wide, b.rsqrt(b.add(squares, b.scalar(1e-6, wide))))
    return b.mul(np.arange(8).astype(np.float16), b.cast(normed, dtype=F16))


def new_gelu(b: Any, x: Any) -> Any:
    """As transformers writes it."""
    cube = b.mul(b.scalar(0.044715, x), b.pow(x, b.scalar(3, x)))
    inner = b.mul(b.scalar(math.sqrt(2 / math.pi), x), b.add(x, cube))
    return b.mul(b.mul(b.scalar(0.5, x), x), b.add(b.scalar(1, x), b.tanh(inner)))


def jax_gelu(b: Any, x: Any) -> Any:
    """0.5 x erfc(-x / sqrt 2), with erfc as 1 - erf."""
    z = b.mul(b.neg(x), b.scalar(1 / ROOT_2, x))
    return b.mul(b.scalar(0.5, x), b.mul(x, b.sub(b.scalar(1, x), b.erf(z))))


def log_sum_exp(b: Any, x: Any) -> Any:
    """x - logsumexp(x), whose maximum is 0 where it is infinite below."""
    top = last_max(b, x)
    seen = b.compare(top, b.scalar(-np.inf, x), predicate="gt")
    top = b.select(seen, top, b.scalar(0, x))
    return b.sub(x, b.add(top, b.log(total(b, b.exp(b.sub(x, top))))))


def sigmoid(b: Any, x: Any) -> Any:
    one = b.scalar(1, x)
    return b.div(one, b.add(one, b.exp(b.neg(x))))


def group_norm(b: Any, x: Any) -> Any:
    """Two groups of the second axis."""
    grouped = b.reshape(x, shape=(2, 2, 16))
    return b.reshape(unit_norm(b, grouped), shape=(2, 4, 8))


UNARY: dict[str, tuple[Body, TensorType, list[str]]] = {
    "softmax": (softmax, X, ["softmax"]),
    "log of a softmax": (lambda b, x: b.log(softmax(b, x)), X, ["log_softmax"]),
    "log of the op": (lambda b, x: b.log(b.softmax(x, axis=-1)), X, ["log_softmax"]),
    "log sum exp": (log_sum_exp, X, ["log_softmax"]),
    "layer norm": (unit_norm, X, ["layernorm"]),
    "layer norm of flax": (flax_norm, X, ["layernorm"]),
    "RMS norm of llama": (llama_norm, tensor("f16", 2, 4, 8), ["rmsnorm"]),
    "group norm": (group_norm, X, ["reshape", "layernorm", "reshape"]),
    "gelu of transformers": (new_gelu, X, ["gelu"]),
    "gelu in f16": (new_gelu, tensor("f16", 2, 4, 8), ["gelu"]),
    "gelu in bf16": (new_gelu, tensor("bf16", 2, 4, 8), ["gelu"]),
    "gelu of JAX": (jax_gelu, tensor("f64", 2, 4, 8), ["gelu"]),
    "sigmoid": (sigmoid, X, ["sigmoid"]),
    "silu": (lambda b, x: b.mul(x, sigmoid(b, x)), X, ["silu"]),
    "relu": (lambda b, x: b.maximum(b.scalar(0, x), x), X, ["relu"]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", UNARY)
def test_a_form_of_an_exporter_is_recognized(name, dynamic):
    body, type_, wanted = UNARY[name]
    if dynamic and name == "group norm":
        pytest.skip("written for one shape")
    types = [type_.with_shape((None, None, 8)) if dynamic else type_]
    module = run(body, types)
    assert names(module) == wanted
    given = values(types)
    (want,), (got,) = interpret(plain(body, types), given), interpret(module, given)
    error = np.abs(got.astype(float) - want.astype(float)).max()
    largest = np.abs(want.astype(float)).max()
    eps = {2: 2.0**-7, 4: 2.0**-20, 8: 2.0**-49}[type_.dtype.itemsize]
    assert error <= eps * largest


def scores(b: Any, query: Any, key: Any) -> Any:
    """Scaled by 1/2 as the root of the depth."""
    product = b.matmul(query, b.transpose(key, permutation=(0, 1, 3, 2)))
    return b.div(product, b.scalar(2, product))


def torch_attention(b: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """As torch's exporter writes it: root of the scale on both sides, a guard against NaN."""
    flat = b.transpose(b.reshape(key, shape=(-1, 5, 4)), permutation=(0, 2, 1))
    keys = b.reshape(flat, shape=(2, 3, 4, 5))
    root = b.scalar(math.sqrt(0.5), query)
    given = b.add(b.matmul(b.mul(query, root), b.mul(keys, root)), mask)
    p = b.softmax(given, axis=-1)
    p = b.select(b.compare(p, p, predicate="ne"), b.scalar(0, p), p)
    return b.matmul(p, value)


def causal(b: Any, query: Any, key: Any, value: Any) -> Any:
    given = scores(b, query, key)
    hidden = b.scalar(-np.inf, given)
    return b.matmul(softmax(b, b.select(np.tri(5, dtype=bool), given, hidden)), value)


def grouped(b: Any, query: Any, key: Any, value: Any) -> Any:
    """Each head of keys and values for three heads of queries."""

    def repeat(x: Any) -> Any:
        one = b.reshape(x, shape=(2, 1, 1, 5, 4))
        return b.reshape(b.broadcast_to(one, shape=(2, 1, 3, 5, 4)), shape=(2, 3, 5, 4))

    return b.matmul(softmax(b, scores(b, query, repeat(key))), repeat(value))


ATTENTION: dict[str, tuple[Body, list[TensorType]]] = {
    "plain": (lambda b, q, k, v: b.matmul(softmax(b, scores(b, q, k)), v), HEADS),
    "mask that is added": (
        lambda b, q, k, v, m: b.matmul(softmax(b, b.add(m, scores(b, q, k))), v),
        [*HEADS, tensor("f32", 2, 1, 1, 5)],
    ),
    "mask that selects": (
        lambda b, q, k, v, m: b.matmul(
            softmax(b, b.select(m, b.scalar(-np.inf, q), scores(b, q, k))), v
        ),
        [*HEADS, tensor("i1", 2, 1, 5, 5)],
    ),
    "mask that is computed": (
        lambda b, q, k, v, m: b.matmul(
            softmax(
                b,
                b.add(
                    b.select(
                        b.compare(m, b.scalar(0, m), predicate="gt"),
                        b.scalar(0, m),
                        b.scalar(-np.inf, m),
                    ),
                    scores(b, q, k),
                ),
            ),
            v,
        ),
        [*HEADS, tensor("f32", 2, 3, 5, 5)],
    ),
    "of torch": (torch_attention, [*HEADS, tensor("f32", 2, 1, 5, 5)]),
    "causal": (causal, HEADS),
    "grouped heads": (grouped, [HEADS[0], *[tensor("f32", 2, 1, 5, 4)] * 2]),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_recognized(name):
    body, types = ATTENTION[name]
    module = run(body, types)
    assert names(module).count("attention") == 1
    assert not {"matmul", "softmax", "exp"} & set(names(module))
    given = values(types)
    if len(types) == 4 and types[3].dtype == F32:
        given[3] = np.where(given[3] > 0, np.float32(0), np.float32(-np.inf))
        given[3][0, 0, 0] = -np.inf
    elif len(types) == 4:
        given[3] = given[3].astype(bool)
    (want,), (got,) = interpret(plain(body, types), given), interpret(module, given)
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_a_causal_bound_is_the_attribute():
    module = run(causal, HEADS)
    (op,) = [op for op in ops_of(module) if op.name == "pyc.attention"]
    assert "is_causal" in op.attributes and len(op.operands) == 3


def twice(b: Any, x: Any) -> Any:
    """The exponentials are needed once more."""
    e = exponentials(b, x)
    return b.mul(b.div(e, total(b, e)), e)


def shifted(b: Any, x: Any) -> Any:
    """The maximum of all rows."""
    e = b.exp(b.sub(x, b.reduce_max(x, axes=(1, 2), keepdims=True)))
    return b.div(e, total(b, e))


def outside(b: Any, x: Any) -> Any:
    """Epsilon outside of the root."""
    centered, variance = statistics(b, x)
    return b.div(centered, b.add(b.sqrt(variance), b.scalar(1e-5, x)))


def unbiased(b: Any, x: Any) -> Any:
    """A variance over n - 1."""
    centered, _ = statistics(b, x)
    variance = b.div(total(b, b.mul(centered, centered)), b.scalar(7, x))
    return b.div(centered, b.sqrt(b.add(variance, b.scalar(1e-5, x))))


def channels_first(b: Any, x: Any) -> Any:
    """Over the middle axis."""
    centered = b.sub(x, b.reduce_mean(x, axes=(1,), keepdims=True))
    variance = b.reduce_mean(b.mul(centered, centered), axes=(1,), keepdims=True)
    return b.mul(centered, b.rsqrt(b.add(variance, b.scalar(1e-5, x))))


def quick_gelu(b: Any, x: Any) -> Any:
    return b.mul(x, b.sigmoid(b.mul(x, b.scalar(1.702, x))))


def coarse_gelu(b: Any, x: Any) -> Any:
    """Another root of 2."""
    return b.mul(
        b.mul(x, b.scalar(0.5, x)), b.add(b.erf(b.div(x, b.scalar(1.41, x))), b.scalar(1, x))
    )


def guarded_softmax(b: Any, x: Any) -> Any:
    """0 where a row is NaN: no softmax, but what it guards is one."""
    p = softmax(b, x)
    return b.select(b.compare(p, p, predicate="ne"), b.scalar(0, x), p)


def in_f64(b: Any, x: Any) -> Any:
    """A norm of f32 values that is computed in f64."""
    return b.cast(unit_norm(b, b.cast(x, dtype=F64)), dtype=F32)


NEAR: dict[str, tuple[Body, set[str]]] = {
    "x exp x": (lambda b, x: b.mul(x, b.exp(x)), set()),
    "an intermediate is needed": (twice, set()),
    "maximum of other axes": (shifted, set()),
    "epsilon outside": (outside, set()),
    "n - 1": (unbiased, set()),
    "another axis": (channels_first, set()),
    "quick gelu": (quick_gelu, {"sigmoid"}),
    "another constant": (coarse_gelu, set()),
    "guard behind a softmax": (guarded_softmax, {"softmax"}),
    "a wider type": (in_f64, {"layernorm"}),
}
COMPOSITES = {"softmax", "log_softmax", "layernorm", "rmsnorm", "gelu", "silu", "sigmoid"}


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_does_not_match(name):
    body, wanted = NEAR[name]
    module = run(body, [X])
    assert COMPOSITES & set(names(module)) == wanted
    given = values([X])
    given[0][0, 0] = -np.inf
    (want,), (got,) = interpret(plain(body, [X]), given), interpret(module, given)
    np.testing.assert_allclose(got, want, 1e-5, 1e-6)


def scaled_in_f32(b: Any, x: Any, scale: Any) -> Any:
    """An RMS norm of f16 values by a scale of f32, as autocast leaves it."""
    wide = b.cast(x, dtype=F32)
    squares = b.reduce_mean(b.mul(wide, wide), axes=(2,), keepdims=True)
    normed = b.mul(wide, b.rsqrt(b.add(squares, b.scalar(1e-6, wide))))
    return b.cast(b.mul(normed, scale), dtype=F16)


def scaled_by_rounded(b: Any, x: Any, scale: Any) -> Any:
    """A norm of f32 values by a scale that the program rounds to f16."""
    return b.mul(unit_norm(b, x), b.cast(b.cast(scale, dtype=F16), dtype=F32))


@pytest.mark.parametrize(
    ("body", "dtype", "kept"),
    [(scaled_in_f32, "f16", ["cast", "rmsnorm", "cast"]),
     (scaled_by_rounded, "f32", ["cast", "cast", "layernorm"])],
)  # fmt: skip
def test_a_norm_rounds_no_scale_that_the_program_does_not(body, dtype, kept):
    types = [tensor(dtype, 2, 4, 8), tensor("f32", 8)]
    module = run(body, types)
    assert names(module) == kept
    given = values(types)
    (want,), (got,) = interpret(plain(body, types), given), interpret(module, given)
    limit = 1e-6 if dtype == "f32" else 0
    np.testing.assert_allclose(got.astype(float), want.astype(float), limit, limit)


def test_a_norm_computed_in_a_wider_type_keeps_the_type():
    module = run(in_f64, [X])
    (op,) = [op for op in ops_of(module) if op.name == "pyc.layernorm"]
    assert "f64" in str(op.result.type)


def test_what_two_norms_share_stays_one_norm():
    """Two scales of the same normalized values: the norm without scale is shared."""

    def body(b: Any, x: Any) -> Any:
        normed = unit_norm(b, x)
        scales = (np.arange(8, dtype=np.float32) + i for i in (1, 2))
        return b.concat(*(b.mul(normed, s) for s in scales), axis=0)

    assert names(run(body, [X])) == ["layernorm", "mul", "mul", "concat"]


def affine(b: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """A batch norm of given statistics."""
    scale, bias, mean, variance = (b.align(v, 1, 3) for v in (scale, bias, mean, variance))
    inverse = b.rsqrt(b.add(variance, b.scalar(1e-5, x)))
    return b.add(b.mul(b.mul(b.sub(x, mean), inverse), scale), bias)


CHANNELS = [X, *[tensor("f32", 4)] * 4]


def test_a_contract_on_errors_keeps_what_may_err_more():
    bound = context_of(make_options(contract=Contract(max_error=1e-3)))
    assert bound.compares and "batchnorm" not in names(run(affine, CHANNELS, bound))
    (decision,) = [d for d in bound.choices.log if d.site.pass_name == "pyc-recognize"]
    assert [a.name for a in decision.alternatives] == [KEEP]
    assert "may err more" in str(decision.evidence[0])
    for clause in ("rounding", 1e-3):
        context = context_of(make_options(contract=Contract(max_error=clause)))
        assert names(run(flax_norm, [X], context)) == ["layernorm"]
    assert names(run(affine, CHANNELS)) == ["batchnorm"]


@pytest.mark.parametrize("poison", [(), ("query",), ("key",), ("value",), ("query", "value")])
def test_a_guard_against_nan_is_kept_for_all_operands(poison):
    """Rows without keys, rows that are NaN for another reason, and values that are infinite."""
    types = ATTENTION["of torch"][1]
    context = context_of(make_options(contract=Contract(max_error="rounding")))
    guarded = run(torch_attention, types, context)
    assert "attention" in names(guarded) and "softmax" not in names(guarded)
    query, key, value, mask = values(types)
    mask[:, :, 1] = -np.inf
    for name in poison:
        {"query": query, "key": key, "value": value}[name][0, 1, 2, 3] = np.nan
        value[1, 2, 3, 1] = np.inf if name == "value" else 1
    (want,) = interpret(plain(torch_attention, types), [query, key, value, mask])
    (got,) = interpret(guarded, [query, key, value, mask])
    np.testing.assert_allclose(got, want, 1e-5, 1e-6)


def test_a_guard_elsewhere_is_no_part_of_attention():
    def body(b: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        clean = b.select(b.compare(query, query, predicate="ne"), b.scalar(0, query), query)
        return torch_attention(b, clean, key, value, mask)

    found = names(run(body, ATTENTION["of torch"][1]))
    assert "attention" in found and found.count("select") == 2


def test_a_decision_says_how_the_composite_rounds():
    reported = {}
    for name, body in {"softmax": softmax, "one pass": flax_norm, "torch": torch_attention}.items():
        context = PassContext(choices=Choices())
        run(body, ATTENTION["of torch"][1] if name == "torch" else [X], context)
        decision = context.choices.log[-1]
        reported[name] = decision.alternatives[0].reason
        composite, kept = (a.cost for a in decision.alternatives)
        assert composite is not None and kept is not None and composite <= kept
        assert decision.alternatives[1].name == KEEP
    assert reported == {
        "softmax": "the same operations",
        "one pass": "rounds otherwise, errs no more",
        "torch": "rounds otherwise, errs no more",
    }


def test_a_recipe_may_keep_the_ops():
    first = PassContext(choices=Choices())
    run(softmax, [X], first)
    (decision,) = first.choices.log
    recipe = Recipe({decision.site.key: KEEP})
    again = PassContext(choices=Choices(recipe=recipe))
    assert "softmax" not in names(run(softmax, [X], again))
    again.choices.require_recipe_used()


def test_programs_without_spelled_composites_are_left_alone():
    def body(b: Any, x: Any) -> Any:
        return b.gelu(b.layernorm(b.softmax(x, axis=-1), *np.ones((2, 8), np.float32)))

    context = PassContext(choices=Choices())
    before, after = plain(body, [X]), run(body, [X], context)
    assert str(before) == str(after) and not context.choices.log


# An encoder that is written out becomes the encoder that names its composites.


LAYERS = 4
WHOLE = f"{BEFORE},{AFTER}"


def counted(module: ir.Module) -> Counter[str]:
    return Counter(op.name.removeprefix("pyc.") for op in ops_of(module))


def after(module: ir.Module, passes: str = WHOLE) -> ir.Module:
    run_pipeline(module, passes, PassContext())
    return module


def imported(batch: int | str, length: int | str) -> ir.Module:
    return import_onnx(legacy(LAYERS, batch, length), context=new_context())


def arguments(batch: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.ones((batch, 1, 1, length), np.float32)
    mask[0, ..., length // 2 :] = 0
    return [rng.normal(0, 1, (batch, length, WIDTH)).astype(np.float32), mask]


@pytest.mark.full
def test_a_written_out_encoder_has_the_ops_of_the_named_one():
    wanted = counted(after(trace(named(LAYERS), *arguments(2, 6)), BEFORE))
    found = counted(after(imported(2, 6)))
    assert found == wanted
    assert found["attention"] == found["gelu"] == LAYERS and found["layernorm"] == 2 * LAYERS


@pytest.mark.parametrize("sizes", [(1, 3), (3, 8)])
@pytest.mark.sampled(1)
def test_a_dynamic_encoder_is_recognized_and_equal(sizes):
    plain, module = after(imported("batch", "length"), BEFORE), after(imported("batch", "length"))
    assert counted(module) == counted(after(imported(2, 6)))
    given = arguments(*sizes)
    (want,), (got,) = interpret(plain, given), interpret(module, given)
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)


@pytest.mark.full
def test_what_is_left_to_iree_is_less():
    """Groups and lone ops behind the passes of a compile, with and without the pass."""
    written = after(imported(2, 6), HIGH_LEVEL.replace("pyc-recognize,", ""))
    recognized = after(imported(2, 6), HIGH_LEVEL)
    computed = [
        sum(n for name, n in counted(m).items() if name not in ("constant", "reshape"))
        for m in (written, recognized)
    ]
    assert computed[1] < 0.7 * computed[0], computed


@pytest.mark.full
def test_a_recognized_encoder_compiles_and_is_equal():
    """Dynamic, from the ONNX model to results on the CPU."""
    program = compile(legacy(1, "batch", "length"))
    plain = import_onnx(legacy(1, "batch", "length"), context=new_context())
    made = [d.chosen for d in program.artifact.decisions if d.site.pass_name == "pyc-recognize"]
    assert Counter(made) == {"layernorm": 2, "softmax": 1, "attention": 1, "gelu": 1}
    for sizes in ((2, 5), (1, 16)):
        given = arguments(*sizes)
        (want,) = interpret(plain, given)
        np.testing.assert_allclose(program(*given), want, 1e-4, 1e-5)


# pyc-recognize on random spellings: each is found and stays equal; near misses stay equal too.


BATCHES = 20
EACH = 250 if FULL else 10


def recognized(spelling: Spelling, context: ir.Context) -> tuple[ir.Module, ir.Module]:
    """The program before and after."""
    before, after = (module_of(spelling.body, spelling.types, context) for _ in "ab")
    for module, passes in ((before, BEFORE), (after, f"{BEFORE},{AFTER}")):
        run_pipeline(module, passes, PassContext(compares=True))
        assert module.operation.verify()
    return before, after


def truth(spelling: Spelling, context: ir.Context, arrays: list[np.ndarray]) -> np.ndarray:
    """The program's results in f64."""
    f64 = np.dtype(np.float64)
    wide = module_of(spelling.body, [t.with_dtype(f64) for t in spelling.types], context)
    return interpret(wide, [a.astype(f64) for a in arrays])[0]


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.full
def test_a_spelling_is_recognized_and_errs_no_more(batch):
    """The composite as its decomposition: each of its operations is rounded."""
    for seed in range(batch * EACH, (batch + 1) * EACH):
        spelling = draw(seed)
        arrays = spelling.arrays((3, 3), seed)
        with new_context() as context, ir.Location.unknown():
            before, after = recognized(spelling, context)
            found = names(after)
            assert set(spelling.composite.split("/")) & set(found), f"{seed}: {spelling}: {found}"
            run_pipeline(after, "pyc-decompose", PassContext())
            exact = truth(spelling, context, arrays)
            plain, composite = (interpret(m, arrays)[0].astype(float) for m in (before, after))
        assert np.array_equal(np.isnan(plain), np.isnan(composite)), f"{seed}: {spelling}"
        errors = [np.nanmax(np.abs(a - exact), initial=0.0) for a in (plain, composite)]
        unit = np.nanmax(np.abs(exact), initial=1.0) * np.finfo(arrays[0].dtype).eps
        assert errors[1] <= max(1.5 * errors[0], 4 * unit), f"{seed}: {spelling}: {errors}, {unit}"


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.full
def test_a_near_miss_stays_what_it_is(batch):
    for seed in range(batch * EACH, (batch + 1) * EACH):
        spelling = draw_near(seed)
        with new_context() as context, ir.Location.unknown():
            before, after = recognized(spelling, context)
            arrays = spelling.arrays((3, 3), seed)
            (want,), (got,) = (interpret(m, arrays) for m in (before, after))
        assert np.array_equal(np.isnan(want), np.isnan(got)), f"{seed}: {spelling}: {names(after)}"
        largest = np.nanmax(np.abs(want[np.isfinite(want)]), initial=1.0)
        np.testing.assert_allclose(got, want, 1e-9, 1e-10 * largest, err_msg=f"{seed}: {spelling}")


def test_the_draws_are_of_every_kind():
    drawn = {s.composite for s in map(draw, range(200))}
    assert drawn == {"/".join(names) for _, names, _, _ in KINDS.values()}
    missed = {draw_near(seed).miss for seed in range(400)}
    assert missed == {miss for *_, misses in KINDS.values() for miss in misses}
