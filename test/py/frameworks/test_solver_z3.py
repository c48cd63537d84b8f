"""Single identities of integers and floats by z3: proved, refuted, or beyond the limit of steps."""

import numpy as np
import pytest
from equivalence_mutants import takes

from pyc_mlir import Counterexample, Proof, Relation, Tensor, Unknown, equivalent
from pyc_mlir.dialects.opdef import OPS, evaluate
from pyc_mlir.dialects.types import BOOL, DTYPES, TensorType, is_float
from pyc_mlir.equivalence import replay
from pyc_mlir.pipelines.pyc.equivalence.nodes import Graph, program
from pyc_mlir.pipelines.pyc.equivalence.solver import Terms

z3 = pytest.importorskip("z3", reason="z3 is not installed")

F32, F16, BF16 = Tensor["f32", 3], Tensor["f16", 3], Tensor["bf16", 2, 2]
I32, I64, U32 = Tensor["i32", 3], Tensor["i64", 3], Tensor["ui32", 3]
PROVED = {
    "shifts": (lambda x: x << np.int32(3), lambda x: x * 8, I32),
    "masks": (lambda x, y: x ^ y, lambda x, y: (x | y) - (x & y), I32),
    "logical shift": (lambda x: x // np.uint32(16), lambda x: x >> np.uint32(4), U32),
    "limits": (lambda x, y: np.maximum(x, y), lambda x, y: np.where(x < y, y, x), I64),
    "sign": (lambda x: -x, lambda x: ~x + 1, I64),
    "twice": (lambda x: x * 2, lambda x: x + x, F32),
    "half": (lambda x: x / 2, lambda x: x * np.float32(0.5), F32),
    "difference": (lambda x, y: x - y, lambda x, y: x + -y, F16),
    "signs": (lambda x, y: (-x) * y, lambda x, y: -(x * y), F16),
    "half of bf16": (lambda x: x / 2, lambda x: x * np.array(0.5, x.dtype), BF16),
    "unknown functions": (lambda x, y: np.exp(x + -y), lambda x, y: np.exp(x - y), F32),
}
REFUTED = {
    "division rounds to zero": (
        lambda x: x // 8 + (x % 8 != 0) * (x < 0), lambda x: x >> np.int32(3), I32,
    ),
    "one number": (
        lambda x: (x == 123456789).astype(np.int32), lambda x: x - x, I32,
    ),
    "zero": (lambda x: x + np.float32(0), lambda x: x, F32),
    "thirds": (lambda x: x / 3, lambda x: x * np.float32(1 / 3), F32),
    "difference turned": (lambda x, y: -(x - y), lambda x, y: y - x, F32),
    "NaN": (lambda x: np.where(x == x, x, np.float32(0)), lambda x: x * 1, F32),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVED)
def test_identities_are_proved(name):
    a, b, kind = PROVED[name]
    a, b = takes(kind)(a), takes(kind)(b)
    proof = equivalent(a, b, relation=Relation.BITS)
    assert isinstance(proof, Proof), proof
    assert proof.relation is Relation.BITS
    assert proof.kind == "solver"
    assert replay(proof, a, b)


@pytest.mark.parametrize("name", REFUTED)
def test_others_are_refuted(name):
    a, b, kind = REFUTED[name]
    answer = equivalent(takes(kind)(a), takes(kind)(b), relation=Relation.BITS)
    assert isinstance(answer, Counterexample), answer


def test_what_takes_too_many_steps_is_unknown():
    a, b = takes(F32)(lambda x, y, z: x + y + z), takes(F32)(lambda x, y, z: x + (y + z))
    assert isinstance(equivalent(a, b, relation=Relation.BITS), Counterexample)
    a, b = takes(I64)(lambda x, y: x // y), takes(I64)(lambda x, y: (x * 3) // (y * 3))
    assert not isinstance(equivalent(a, b), Proof)
    a, b = takes(F32)(lambda x, y: x * y / y), takes(F32)(lambda x, y: y * x / y * 1)
    found = equivalent(a, b, relation=Relation.BITS)
    assert isinstance(found, Proof | Unknown)


def test_only_bits_are_refuted_of_floats():
    a, b = takes(F32)(lambda x: x + np.float32(0)), takes(F32)(lambda x: x)
    assert isinstance(equivalent(a, b), Proof)


SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
    -3e-6,
    65504.0,
    3e38,
    2.5,
    127.9,
)
NAMES = (
    *("add", "sub", "mul", "div", "rem", "maximum", "minimum", "and", "or", "xor", "neg", "abs"),
    *("not", "floor", "ceil", "round", "sqrt", "shift_left", "shift_right"),
)
TYPES = ("bool", "i8", "ui8", "ui16", "i32", "ui64", "i64", "f16", "bf16", "f32", "f64")


def dtype_of(name: str) -> np.dtype:
    return BOOL if name == "bool" else DTYPES[name]


CASES = [(op, kind) for op in NAMES for kind in TYPES if dtype_of(kind) in OPS[op].allowed]  # type: ignore[attr-defined]


def numbers(name: str, rng: np.random.Generator) -> np.ndarray:
    """Return numbers of a type with its ends and special values."""
    dtype = dtype_of(name)
    if dtype == BOOL:
        return rng.random(24) < 0.5
    if is_float(dtype):
        with np.errstate(all="ignore"):
            drawn = [*SPECIAL, *(rng.normal(size=10) * 10.0 ** rng.integers(-8, 9, 10))]
            return np.array(drawn).astype(dtype)
    info = np.iinfo(dtype)
    ends = [info.min, info.max, 0, 1, 2, 3, 7, info.max - 1]
    drawn = np.frombuffer(rng.bytes(16 * dtype.itemsize), dtype)
    return np.concatenate([np.array(ends, dtype), drawn])


def agrees(name: str, arrays: list[np.ndarray], **params: object) -> None:
    """Compare the term of an op with its reference, number by number."""
    graph, op = Graph(), OPS[name]
    inputs = [graph.input(i, TensorType((), a.dtype)) for i, a in enumerate(arrays)]
    node = graph.node(op, inputs, params)
    with np.errstate(all="ignore"):
        expected = evaluate(op, arrays, **params)
    terms = Terms(z3.Context())
    (term,) = terms.of(program(inputs, [node]))
    if term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
        return
    for i, right in enumerate(expected):
        known = [(terms.arguments[n], terms.constant(a[i], a.dtype))
                 for n, a in zip(inputs, arrays, strict=True)]  # fmt: skip
        is_right = z3.substitute(term, *known) == terms.constant(right, expected.dtype)
        values = [a[i] for a in arrays]
        assert z3.is_true(z3.simplify(is_right)), (name, values, right)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_terms_are_the_references(name, dtype):
    rng = np.random.default_rng(sum(map(ord, name + dtype)))
    arrays = [rng.permutation(numbers(dtype, rng)) for _ in OPS[name].operands]
    if name in ("maximum", "minimum") and is_float(arrays[0].dtype):
        arrays[1] = np.full_like(arrays[1], 2.5)
    agrees(name, arrays)


@pytest.mark.parametrize("source", TYPES)
def test_conversions_are_the_references(source):
    rng = np.random.default_rng(5)
    for target in TYPES:
        rounded_twice = (source, target) == ("f64", "bf16") or (
            source.strip("u")[0] == "i" and target in ("f16", "bf16")
        )
        if not rounded_twice:
            agrees("cast", [numbers(source, rng)], dtype=dtype_of(target))


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", ["i8", "ui32", "bf16", "f64"])
def test_comparisons_are_the_references(predicate, dtype):
    rng = np.random.default_rng(6)
    agrees("compare", [numbers(dtype, rng), numbers(dtype, rng)], predicate=predicate)
