"""Passes keep the equality that they declare; planted faults are found."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest
from conv_nets import draw_network
from encoders import legacy
from equivalence_mutants import PROGRAMS
from random_ops import draw_graph

from pyc_mlir import Tensor, nn, trace
from pyc_mlir.compilation.options import HIGH_LEVEL
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.pipelines.driver.base import PassContext, Relation
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.driver.registry import PASSES
from pyc_mlir.pipelines.pyc import canonicalize, fold_norms
from pyc_mlir.pipelines.pyc.equivalence.answers import Proof
from pyc_mlir.pipelines.pyc.equivalence.rewrites import Check, RewriteChecker
from pyc_mlir.tools.cli.opt_driver import OptDriver
from pyc_mlir.tools.cli.opt_flags import parse_flags

MOVES = Tensor["f32", 3, 4]
_RNG = np.random.default_rng(5)
FILTERS = _RNG.normal(size=(4, 2, 3, 3)).astype(np.float32)
SCALE = _RNG.normal(size=(4, 1, 1)).astype(np.float32)


def checked(module: ir.Module, passes: str = HIGH_LEVEL) -> list[Check]:
    checker = RewriteChecker()
    run_pipeline(module, passes, PassContext(verifier=checker))
    return checker.checks


def wrong(checks: list[Check]) -> list[str]:
    return [str(check) for check in checks if check.is_wrong]


@contextmanager
def planted(name: str, rewrite, keeps: Relation = Relation.BITS) -> Iterator[None]:
    """Register a rewrite for a while."""
    canonicalize.rewrites(keeps, name)(rewrite)
    try:
        yield
    finally:
        canonicalize.REWRITES[name].remove(rewrite)


def swapped_sub(op: ir.Operation) -> ir.Value | None:
    """Return y - x for x - y: a fault."""
    lhs, rhs = op.operands
    return IRBuilder().sub(rhs, lhs) if str(lhs) < str(rhs) else None


def lost_exp(op: ir.Operation) -> ir.Value | None:
    """Return x for exp(x): a fault."""
    return op.operands[0]


def other_order(op: ir.Operation) -> ir.Value | None:
    """Return a reshape for a transpose: a fault."""
    (x,) = op.operands
    return IRBuilder().reshape(x, shape=tuple(op.result.type.shape))


def difference(x, y):
    return np.exp(x - y).T


difference.__annotations__ = {"x": MOVES, "y": MOVES}


@pytest.mark.parametrize(
    ("name", "rewrite"), [("sub", swapped_sub), ("exp", lost_exp), ("transpose", other_order)]
)
def test_a_planted_fault_is_found(name, rewrite):
    module = trace(difference)
    with planted(name, rewrite, Relation.ROUNDED):
        checks = checked(module, "pyc-canonicalize{max-iterations=1}")
    found = [check for check in checks if check.rewrite == rewrite.__name__]
    assert found and not any(check.is_proved for check in found)
    assert all(check.is_proved for check in checks if check not in found)


def test_the_tool_shows_the_offender(tmp_path):
    module = trace(difference)
    flags = parse_flags(["--pyc-canonicalize", "--verify-rewrites"])
    said: list[str] = []

    class Said:
        def write(self, text: str) -> None:
            said.append(text)

        def flush(self) -> None:
            pass

    with planted("exp", lost_exp, Relation.ROUNDED):
        outcome = OptDriver(flags, str(module).encode(), Said()).run()  # type: ignore[arg-type]
    text = "".join(said)
    assert "lost_exp" in text and "of" in text and "are proved" in text
    assert outcome.status in (0, 1)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_rewrites_of_programs_are_proved(function):
    checks = checked(trace(function))
    assert not wrong(checks)
    assert sum(check.is_proved for check in checks) >= 0.95 * len(checks)


@pytest.mark.full
def test_rewrites_of_an_encoder_are_proved():
    with new_context() as context, ir.Location.unknown():
        checks = checked(import_onnx(legacy(2, 1, 8), context=context))
    assert len(checks) > 20
    assert all(check.is_proved for check in checks)


@pytest.mark.full
@pytest.mark.parametrize("draw", [draw_graph, draw_network], ids=["mixed types", "images"])
def test_rewrites_of_random_programs_are_right(draw):
    counts: Counter[str] = Counter()
    for seed in range(25):
        with new_context(), ir.Location.unknown():
            checks = checked(draw(Random(seed)).module())
        assert not wrong(checks), seed
        counts["proved"] += sum(check.is_proved for check in checks)
        counts["all"] += len(checks)
    assert counts["proved"] >= 0.95 * counts["all"], counts


def normed(x):
    return nn.conv2d(x, FILTERS) * SCALE / np.float32(3) - SCALE


normed.__annotations__ = {"x": Tensor["f32", 1, 2, 5, 5]}


def one_off(fold: fold_norms.Fold) -> fold_norms.Fold:
    """Return a fold one of whose weights is two units off: a fault."""
    weights = fold.weights.copy()
    weights.flat[7] = np.nextafter(np.nextafter(weights.flat[7], np.inf), np.inf)
    return dataclasses.replace(fold, weights=weights)


def other_shift(fold: fold_norms.Fold) -> fold_norms.Fold:
    """Return a fold that adds what it should subtract, and says so: a fault."""
    (*steps, (_, vector)) = fold.steps
    return dataclasses.replace(fold, shift=-fold.shift, steps=(*steps, ("add", vector)))


def test_weights_that_are_rounded_again_are_proved():
    (check,) = checked(trace(normed), "pyc-fold-norms")
    assert check.is_proved
    assert isinstance(check.answer, Proof) and check.answer.relation is Relation.ROUNDED


@pytest.mark.parametrize("fault", [one_off, other_shift])
def test_a_wrong_fold_of_weights_is_no_proof(fault, monkeypatch):
    found = fold_norms._fold
    monkeypatch.setattr(fold_norms, "_fold", lambda conv: fault(found(conv)))
    (check,) = checked(trace(normed), "pyc-fold-norms")
    assert not check.is_proved
    assert fault is not one_off or "units of its last place" in str(check)


def test_passes_that_rewrite_declare_what_they_keep():
    for name in ("pyc-layout", "pyc-chunk", "pyc-fuse", "pyc-infer-shapes"):
        assert isinstance(getattr(PASSES[name], "relation", None), Relation), name
    for rewrites in canonicalize.REWRITES.values():
        assert all(rewrite in canonicalize.KEEPS for rewrite in rewrites)


def test_without_a_verifier_nothing_is_recorded():
    from pyc_mlir.pipelines.pyc.rewriting import replacements

    assert replacements.get() is None
    run_pipeline(trace(difference), HIGH_LEVEL, PassContext())
    assert replacements.get() is None
