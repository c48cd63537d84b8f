"""pyc-recognize on random spellings: each is found and stays equal; near misses stay equal too."""

import numpy as np
import pytest
from conftest import FULL
from op_modules import module_of, ops_of
from spellings import KINDS, Spelling, draw, draw_near

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline

BATCHES = 20
EACH = 250 if FULL else 10
BEFORE = "pyc-canonicalize,pyc-infer-shapes"
AFTER = "pyc-recognize,pyc-canonicalize"


def names(module: ir.Module) -> list[str]:
    return [op.name.removeprefix("pyc.") for op in ops_of(module)]


def recognized(spelling: Spelling, context: ir.Context) -> tuple[ir.Module, ir.Module]:
    """The program before and after."""
    before, after = (module_of(spelling.body, spelling.types, context) for _ in "ab")
    for module, passes in ((before, BEFORE), (after, f"{BEFORE},{AFTER}")):
        run_pipeline(module, passes, PassContext(compares=True))
        assert module.operation.verify()
    return before, after


def truth(spelling: Spelling, context: ir.Context, arrays: list[np.ndarray]) -> np.ndarray:
    """What the program computes in f64."""
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
