"""Programs that are equal, that differ, and those that no engine may call equal."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from equivalence_campaign import SPELLINGS, encoder, mlir_tv, mutants, pyc_pairs, rule_set
from equivalence_mutants import PROGRAMS, read, takes
from equivalence_rules import DATA

from pyc_mlir import PycError, Relation, Tensor, TensorSpec, equivalent, nn
from pyc_mlir.equivalence import Counterexample, Proof, Unknown, equivalent_all, replay
from pyc_mlir.pipelines.pyc.equivalence import fields
from pyc_mlir.pipelines.pyc.equivalence.algebra import likely, nearest_root
from pyc_mlir.pipelines.pyc.equivalence.decide import decide
from pyc_mlir.pipelines.pyc.equivalence.nodes import Graph
from pyc_mlir.pipelines.pyc.equivalence.refute import has_balls

X = Tensor["f32", 2, 3]
ROWS = Tensor["f32", "n", 3]
I8, I32 = Tensor["i8", 3], Tensor["i32", 3]
F32 = np.dtype(np.float32)


def typed(function: Any, kind: Any) -> Any:
    return takes(kind)(function)


EQUAL = {
    "softmax": (lambda x: nn.softmax(x), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), X),
    "guard": (lambda x: np.where(x.T != x.T, 0, x.T), lambda x: x.T, X),
    "tanh": (lambda x: np.tanh(x), lambda x: 2 * nn.sigmoid(2 * x) - 1, X),
    "exp": (lambda x, y: np.exp(x) * np.exp(y), lambda x, y: np.exp(x + y), X),
    "roots": (lambda x: np.sqrt(36 * (x * x + 1)), lambda x: 6 * np.sqrt(x * x + 1), X),
    "sums": (lambda x: x.sum(0), lambda x: x.T.sum(1), X),
    "powers": (lambda x: x**3, lambda x: x * x * x, X),
    "moves": (lambda x, y: np.concatenate([x, y], -1)[:, :3], lambda x, y: x.T.T, X),
    "bytes": (lambda x, y: (x + y) - y, lambda x, y: x, I8),
    "shifts": (lambda x: x // 8, lambda x: x >> np.int8(3), I8),
    "wrapped": (lambda x, y: (x + y) * 3 - y, lambda x, y: x + 2 * y + x + x, I32),
    "nothing": (lambda x: x[:0], lambda x: x[:0] * 2, X),
}
DIFFERENT = {
    "axis": (lambda x: nn.softmax(x), lambda x: np.exp(x) / np.exp(x).sum(0, keepdims=True), X),
    "sign of a root": (lambda x: np.sqrt(x * x), lambda x: x, X),
    "sign of a constant": (
        lambda x: np.sqrt(36 * (x * x + 1)), lambda x: -6 * np.sqrt(x * x + 1), X,
    ),
    "floors": (lambda x: np.floor(-x), lambda x: -np.floor(x), X),
    "maxima": (lambda x, y: np.maximum(x, y).max(-1), lambda x, y: x.max(-1) + y.max(-1), X),
    "wrapped sums": (
        lambda x, y: (x + y).astype(np.int32),
        lambda x, y: x.astype(np.int32) + y.astype(np.int32), I8,
    ),
    "widened": (
        lambda x, y: (x * y).astype(np.int64),
        lambda x, y: x.astype(np.int64) * y.astype(np.int64), I32,
    ),
    "division": (lambda x: x - x % 8, lambda x: x, I32),
    "one ulp": (
        lambda x: x * np.float32(12**-0.5),
        lambda x: x * np.nextafter(np.float32(12**-0.5), np.float32(1)), X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equal_programs_are_proved(name):
    a, b, kind = EQUAL[name]
    a, b = typed(a, kind), typed(b, kind)
    proof = equivalent(a, b)
    assert isinstance(proof, Proof), proof
    assert replay(proof, a, b)


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_programs_are_refuted(name):
    a, b, kind = DIFFERENT[name]
    answer = equivalent(typed(a, kind), typed(b, kind))
    assert not isinstance(answer, Proof)
    if has_balls():
        assert isinstance(answer, Counterexample), answer


def test_a_proof_names_its_relation_and_its_kind():
    @takes(X)
    def direct(x):
        return x / np.float32(12**0.5)

    @takes(X)
    def scaled(x):
        return x * np.float32(12**-0.5)

    proof = equivalent(direct, scaled)
    assert isinstance(proof, Proof)
    assert proof.relation is Relation.ROUNDED
    assert not isinstance(equivalent(direct, scaled, relation=Relation.REALS), Proof)
    answer = equivalent(direct, scaled, relation=Relation.BITS)
    assert isinstance(answer, Counterexample)
    same = equivalent(direct, direct)
    assert isinstance(same, Proof)
    assert (same.relation, same.kind) == (Relation.BITS, "structural")


def test_the_clause_of_floats_shows_what_overflows():
    a, b, _ = EQUAL["softmax"]
    proof = equivalent(typed(a, X), typed(b, X))
    assert isinstance(proof, Proof)
    assert not proof.is_safe_in_floats
    assert any(c.name == "large mean" and c.second is None for c in proof.floats)
    assert "not finite" in str(proof)


ZERO, ONE = np.float32(0), np.float32(1)
# Equal over the reals; the second lacks what the first does of NaN, or of a zero's sign.
GUARDS: dict[str, tuple[Any, Any]] = {
    "x == x": (lambda x, y: np.where(x == x, x, ZERO), lambda x, y: x * 1),
    "x <= x": (lambda x, y: np.where(x <= x, x, ONE), lambda x, y: x + 0),
    "isnan": (lambda x, y: np.where(np.isnan(x), ZERO, x), lambda x, y: x * 1),
    "fmax": (lambda x, y: np.fmax(x, ZERO), lambda x, y: np.maximum(x, ZERO)),
    "fmin": (lambda x, y: np.fmin(x, y), lambda x, y: np.minimum(x, y)),
    "a condition": (lambda x, y: np.isnan(x * 1), lambda x, y: x * 1 > x),
    "an index": (lambda x, y: (x != x).argmax(-1), lambda x, y: (x > x).argmax(-1)),
    "of a factor": (lambda x, y: np.where(y == y, y, ZERO) * x, lambda x, y: x * y),
    "of one result": (lambda x, y: (x * 2, np.where(x == x, x, y)), lambda x, y: (x + x, x * 1)),
    "signs of zeros": (lambda x, y: 1 / (x + ZERO), lambda x, y: 1 / x),
    "subnormals": (lambda x, y: x * 1, lambda x, y: 1 / (1 / x)),
}


@pytest.mark.parametrize("name", sorted(GUARDS))
def test_what_differs_at_special_values_is_not_safe(name: str):
    first, second = GUARDS[name]
    for other, is_safe in ((second, False), (lambda x, y: first(x * 1, y), True)):
        proof = equivalent(first, other, inputs=[TensorSpec("f32", 2, 3)] * 2)
        assert isinstance(proof, Proof) and proof.is_safe_in_floats is is_safe


def test_replay_refuses_other_programs_and_changed_proofs():
    a, b, _ = EQUAL["softmax"]
    a, b = typed(a, X), typed(b, X)
    proof = equivalent(a, b)
    assert isinstance(proof, Proof)
    with pytest.raises(PycError, match="BAD_ARGUMENT"):
        replay(proof, b, a)
    assert not replay(replace(proof, steps=()), a, b)


@pytest.mark.parametrize("wrong", [{"relation": "reals"}, {"seed": -1}, {"trials": 0}])
def test_other_arguments_are_refused(wrong):
    a = typed(EQUAL["softmax"][0], X)
    with pytest.raises(PycError, match="BAD_ARGUMENT"):
        equivalent(a, a, **wrong)


def test_what_cannot_be_compared_is_unknown():
    @takes(ROWS)
    def rows(x):
        return nn.softmax(x)

    @takes(ROWS)
    def longer(x):
        return nn.softmax(x * 1.0)

    assert isinstance(equivalent(rows, rows), Proof)
    assert isinstance(equivalent(rows, longer), Unknown)
    assert isinstance(equivalent(rows, longer, inputs=[(2, 3)]), Proof)
    assert isinstance(equivalent(rows, typed(EQUAL["powers"][0], X)), Unknown)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_encoder_equals_its_spellings(spelling):
    graph = Graph()
    base, other = (read(encoder(2, name), graph) for name in ("", spelling))
    answer = decide(base, other, graph, explains=False)
    assert isinstance(answer, Proof)
    assert answer.relation is Relation.REALS


def test_questions_of_one_call_have_the_answers_of_single_ones():
    base, *others = (encoder(1, name) for name in ("", *SPELLINGS))
    found = equivalent_all(base, [*others, typed(EQUAL["softmax"][0], X)])
    assert found == [equivalent(base, b) for b in others] + found[-1:]
    assert all(isinstance(answer, Proof) for answer in found[:-1])
    assert isinstance(found[-1], Unknown)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_no_mutant_is_proved_that_differs(seed):
    counts = mutants(4 * len(PROGRAMS), seed)
    assert counts["mutants"] >= 3 * len(PROGRAMS)
    assert not [name for name in counts if "wrong" in name], counts


def test_one_ulp_is_another_constant():
    value = np.float32(12**-0.5)
    assert nearest_root(float(value), F32) is not None
    for side in (0, 1):
        assert nearest_root(float(np.nextafter(value, np.float32(side))), F32) is None


@pytest.mark.parametrize("number", [0.3, 1 / 3, 3**-0.5, 8**-0.25, 1 / 3000, 5000**-0.5])
def test_proofs_and_recognition_read_a_constant_alike(number):
    stored = float(np.float32(number))
    value, degree = nearest_root(stored, F32) or (0, 1)
    assert likely(stored, F32) == pytest.approx(number, rel=1e-15)
    assert float(value) == pytest.approx(number**degree, rel=1e-15)


@pytest.mark.parametrize("height", fields.CHAINS)
def test_the_primes_are_a_tower(height):
    for trial in range(len(fields.CHAINS[height])):
        primes = fields.tower(height, trial)
        assert all(pow(2, q - 1, q) == pow(3, q - 1, q) == 1 and q % 4 == 3 for q in primes)
        assert all(b == 2 * a + 1 for a, b in pairwise(primes))
        assert primes[-1] < 1 << 31


def test_arithmetic_of_the_fields():
    q = fields.tower(1, 0)[0]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, q, s, dtype=np.uint64) for s in ((3, 50), (50, 4)))
    exact = (a.astype(object) @ b.astype(object)) % q
    assert np.array_equal(fields.matmul(a, b, q), exact.astype(np.uint64))
    assert (fields.product(a, fields.inverse(a, q), q) == 1).all()
    (halves,) = fields.of_floats(np.array([0.5, -0.75, 3.0, 0.0]), [q])
    assert [int(h) * 4 % q for h in halves] == [2, q - 3, 12, 0]


# Published rules are equal, damaged ones are rejected, and verdicts are kept; needs the data.


published = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there")


@published
@pytest.mark.full
@pytest.mark.parametrize("name", ["taso", "tensat"])
def test_all_rules_are_equal(name):
    sound, damaged = rule_set(name)
    assert all(answer.startswith("proof") for answer in sound), sound
    assert "wrong proof" not in damaged, damaged


@published
@pytest.mark.full
def test_rules_with_transfers_are_equal():
    sound, damaged = rule_set("flexflow")
    proofs = sum(n for answer, n in sound.items() if answer.startswith("proof"))
    # One adds halves of a concatenation, one fits no shapes.
    assert sound.total() - proofs == 2, sound
    assert "wrong proof" not in damaged, damaged


@published
@pytest.mark.full
def test_verdicts_on_programs_are_kept():
    for answer, number in pyc_pairs().items():
        different = answer.startswith("different")
        assert different != (": proof" in answer), (answer, number)


@published
@pytest.mark.full
def test_no_wrong_proof_on_pairs_of_mlir_tv():
    for answer in mlir_tv():
        assert not answer.startswith("does not refine: proof"), answer
