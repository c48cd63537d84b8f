"""Approximate products: within what is allowed, exact tiles with gemm's bits, damage and checks."""

import numpy as np
import pytest
from kernel_runs import name_of, targets
from kernel_works import layer
from suites.approximate import Products, is_wrong, ways_of

from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.numerics.approximation import DEVIATIONS
from pyc_mlir.pipelines.kernels.families.approximate import FAMILY, ApproximateGemm
from pyc_mlir.pipelines.kernels.families.approximate_forms import (
    FORMS,
    Form,
    RoundedB,
    best_form,
    deviations,
    dither,
    has_form,
)
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.lang.values import lanes_of_sums
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device

ROWS, COLUMNS, DEPTH = 26, 144, 200
ALLOWED = 0.1


def drawn(seed):
    values = np.random.default_rng(seed)
    a, b = values.normal(size=(ROWS, DEPTH)), values.normal(size=(DEPTH, COLUMNS))
    return a.astype(np.float32), b.astype(np.float32)


@pytest.fixture(scope="module", params=[*targets(), "cpu"], ids=name_of)
def products(request):
    """The plain product, then each way that the target has an instruction for."""
    target = make_options().target if request.param == "cpu" else request.param
    plain = Gemm.on(target, ROWS, COLUMNS, DEPTH, workgroups=(1, 1))
    return Products(target, [plain, *ways_of(target, plain, ALLOWED).values()])


def each(products):
    return range(1, len(products.knobs))


def exact(products, a, b):
    return products.call(0, products.arguments(0, a, b))[0].numpy()


def test_products_are_within_what_is_allowed_and_not_exact(products):
    a, b = drawn(0)
    for number in each(products):
        found = products.found(number, products.arguments(number, a, b))
        panels = -(-COLUMNS // products.knobs[number].product.panel)
        assert found.tiles == 5 * panels and found.by_bound + found.by_sums == 0
        assert not is_wrong(products.knobs[number], a, b, found.result)
        assert not np.array_equal(found.result, exact(products, a, b))


def test_plain_arithmetic_needs_no_repair():
    """A tile that fails is computed exactly, so that wrong sums show in the counts alone."""
    target = make_options().target
    knobs = Gemm.on(target, ROWS, COLUMNS, DEPTH, workgroups=(1, 1))
    made = Products(target, [ApproximateGemm.on(target, knobs, "int16", ALLOWED, "plain")])
    found = made.found(0, made.arguments(0, *drawn(2)))
    assert found.tiles and found.by_bound + found.by_sums == 0


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, 1e-35])
def test_tiles_that_may_be_off_by_more_have_the_bits_of_gemm(products, special):
    a, b = drawn(1)
    a[1, 3:] = special
    a[1, :3] = 0
    wanted = exact(products, a, b)
    for number in each(products):
        found = products.found(number, products.arguments(number, a, b))
        product = products.knobs[number].product
        assert found.by_bound == -(-COLUMNS // product.panel) and found.by_sums == 0
        rows = slice(0, product.height)
        assert np.array_equal(found.result[rows], wanted[rows], equal_nan=True)


def test_rows_and_columns_of_zeros_are_zero(products):
    a, b = drawn(2)
    a[4:9], b[:, 7] = 0, 0
    for number in each(products):
        result = products.found(number, products.arguments(number, a, b)).result
        assert not result[4:9].any() and not result[:, 7].any()


def test_weights_that_are_not_finite_make_their_panels_exact(products):
    a, b = drawn(3)
    b[5, 2] = np.inf
    wanted = exact(products, a, b)
    for number in each(products):
        found = products.found(number, products.arguments(number, a, b))
        panel = products.knobs[number].product.panel
        assert np.array_equal(found.result[:, :panel], wanted[:, :panel], equal_nan=True)
        assert 0 < found.by_bound < found.tiles


def test_damaged_words_and_scales_are_seen_by_the_sums(products):
    a, b = drawn(4)
    wanted = exact(products, a, b)
    for number in each(products):
        knobs, given = products.knobs[number], products.arguments(number, a, b)
        words = given[2].numpy().copy()
        words[: knobs.product.panel * 8] = 0
        damaged = [*given[:2], to_device(words, products.device), *given[3:]]
        found = products.found(number, damaged)
        panel = knobs.product.panel
        assert found.by_sums > 0
        assert not is_wrong(knobs, a, b, found.result) or np.array_equal(
            found.result[:, :panel], wanted[:, :panel]
        )


@pytest.mark.parametrize("form", sorted({f for forms in FORMS.values() for f in forms}))
def test_errors_have_the_deviation_that_the_bound_counts_with(form):
    """In numpy: dithered rounding of one side, whatever the data."""
    if form == "bf16":
        pytest.skip("bf16 rounds shares of numbers; its bound is an inequality")
    made, values = Form(form, 256), np.random.default_rng(7)
    kinds = (values.normal(size=(256, 500)), np.where(values.random((256, 500)) > 0.5, 1, 0.3))
    for b in kinds:
        rounded = RoundedB.of(made, b)
        off = (rounded.numbers - (dither(256, 1) - 0.5)[:, None]) * rounded.scales - b
        a = np.full(256, 0.7)
        errors = a @ off / (np.linalg.norm(a) * rounded.scales / np.sqrt(12))
        assert np.abs(errors).max() < 6


def test_no_search_step_by_step_finds_a_row_whose_errors_add_up(products):
    """Each number is kept within one level, at the one of 25 that raises a column's error most."""
    a, b = drawn(5)
    for number in each(products):
        knobs, given = products.knobs[number], products.arguments(number, a, b)
        panel = b[:, : knobs.product.panel].astype(np.float64)
        row = np.clip(a[0], -2.5, 2.5)
        row[0] = 2.5
        step = 2.5 / (64 if knobs.of_form.is_bf16 else knobs.of_form.levels)
        for k in range(1, DEPTH):
            tried = np.repeat(row[None], ROWS, 0)
            tried[1:, k] = np.clip(row[k] + np.linspace(-1, 1, ROWS - 1) * step, -2.49, 2.49)
            given[0] = to_device(tried, products.device)
            found = products.found(number, given)
            off = found.result[:, : panel.shape[1]] - tried.astype(np.float64) @ panel
            row = tried[off[:, 0].argmax()]
        assert found.by_bound + found.by_sums == 0
        of_rows = deviations(knobs.of_form, tried.astype(np.float64), panel)
        assert np.abs(off / of_rows[:, None]).max() < 5.5


def test_rows_made_of_the_errors_of_weights_are_off_by_no_more_than_documented(products):
    """docs/contracts.md: what B's rounding adds is fixed, and such rows meet all of it."""
    _, b = drawn(7)
    for number in each(products):
        form = products.knobs[number].of_form
        if form.is_bf16:
            continue
        panel = b[:, : products.knobs[number].product.panel].astype(np.float64)
        rounded = RoundedB.of(form, panel)
        held = (rounded.numbers - (dither(DEPTH, 1) - 0.5)[:, None]) * rounded.scales
        a = np.resize((held - panel).T, (ROWS, DEPTH)).astype(np.float32)
        result = products.found(number, products.arguments(number, a, b)).result
        off = np.abs(result[:, : panel.shape[1]] - a.astype(np.float64) @ panel).max(axis=1)
        share = off / deviations(form, a.astype(np.float64), panel) / DEVIATIONS
        assert 1 < share.max() < np.sqrt(1 + DEPTH / 12)


def test_any_change_of_a_row_draws_its_errors_anew(products):
    """The last bit or the sign of a number, or two numbers in each other's place."""
    a, b = drawn(6)
    changed = np.repeat(a[:1], ROWS, 0)
    for row in range(2, ROWS):
        at = 7 * row - 11
        if row % 3 == 0:
            changed[row, at] *= -1
        elif row % 3 == 1:
            changed[row, at : at + 32 : 16] = changed[row, at : at + 32 : 16][::-1]
        else:
            changed[row, at] = np.nextafter(changed[row, at], np.float32(9))
    for number in each(products):
        result = products.found(number, products.arguments(number, changed, b)).result
        errors = result - changed.astype(np.float64) @ b.astype(np.float64)
        assert np.array_equal(result[0], result[1])
        alike = np.corrcoef(errors[1:])
        assert np.abs(alike[0, 1:]).max() < 0.9


def test_sums_stay_within_32_bits():
    for depth in (1, 7, 1000, 8192, 1 << 16):
        for name in ("bytes", "pairs"):
            form = Form(name, depth)
            most = (form.levels + 1 + form.offset) * (form.levels + 1) * depth
            assert most + form.offset * form.levels < 1 << 31


@pytest.mark.parametrize("vectors", range(1, 9))
def test_lanes_of_sums_name_every_vector(vectors):
    order = lanes_of_sums(vectors, 16)
    assert len(order) == 16 and set(order) == set(range(vectors))


def offer(rows, target):
    knobs = Gemm.on(target, rows, COLUMNS, DEPTH, epilogue=layer(bias=True))
    return KernelOffer(knobs, 1, (Feed(0), Feed(1), Feed(2)), Cost(seconds=1.0))


def test_an_offer_is_approximated_where_the_target_has_an_instruction():
    avx2 = Target.named("cpu-avx2")
    made = FAMILY.approximated(offer(32, avx2), avx2, "int8", ALLOWED)
    assert made is not None and made.knobs.form == "madd"
    assert [f.value for f in made.feeds] == [0, 1, 1, 1, 2]
    assert made.cost.seconds < 1 and made.cost.constant_bytes > 0
    names = [o.name for o in made.knobs.kernel("k").operands]
    assert names == ["a", "b", "words", "facts", "e0", "c", "scratch", "approximations"]
    assert FAMILY.approximated(offer(32, avx2), avx2, "bf16", ALLOWED) is None
    assert FAMILY.approximated(offer(4, avx2), avx2, "int8", ALLOWED) is None


def test_a_target_without_the_instruction_is_refused():
    avx512 = Target.named("cpu-avx512")
    assert not has_form(avx512, "bytes") and best_form(avx512, "int8") == "madd"
    plain = Gemm.on(avx512, 8, 64, 64)
    refused = FAMILY.refusal(ApproximateGemm(plain, "int8", ALLOWED, "bytes"), avx512)
    assert "the instruction of 'bytes'" in refused
    assert best_form(Target.named("cpu-neon"), "int8") is None
