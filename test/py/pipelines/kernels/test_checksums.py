"""Checksums in products: equal bits without a fault, passing faults repaired, others found."""

import numpy as np
import pytest
from kernel_runs import name_of, targets
from kernel_works import layer
from suites.checksums import Products

from pyc_mlir.pipelines.kernels.families.checked import FAMILY, CheckedGemm, PanelSums, signs
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device

NOWHERE = (-1.0, 0.0, 0.0)
# Rows, columns, depth: narrower panels, tiles below the last, blocks of the depth, one row.
SHAPES = ((6, 64, 64), (17, 130, 100), (13, 200, 2100), (1, 96, 333), (3, 16, 5))
DYNAMIC = ("m", 96, 333)


def flip_of(row, column, bit):
    return (row, column, np.uint32(1 << bit).view(np.float32))


def drawn(shape, seed=0, rows=11):
    m, n, k = shape
    values = np.random.default_rng(seed)
    a = values.normal(size=(rows if isinstance(m, str) else m, k)).astype(np.float32)
    return a, values.normal(size=(k, n)).astype(np.float32)


@pytest.fixture(scope="module", params=targets("test_checksums"), ids=name_of)
def products(request):
    """By shape, each product plain (2i) and checked (2i + 1)."""
    knobs = []
    for shape in (*SHAPES, DYNAMIC):
        plain = Gemm.on(request.param, *shape)
        knobs += [plain, CheckedGemm(plain, injected=True)]
    return Products(request.param, knobs)


def checked(products, number, a, b, flip=NOWHERE):
    return products.found(2 * number + 1, products.arguments(2 * number + 1, a, b, flip))


def plain(products, number, a, b):
    return products.call(2 * number, products.arguments(2 * number, a, b))[0].numpy()


@pytest.mark.parametrize("number", range(len(SHAPES) + 1))
def test_without_a_fault_bits_are_those_of_the_plain_kernel(products, number):
    a, b = drawn((*SHAPES, DYNAMIC)[number], number)
    found = checked(products, number, a, b)
    assert np.array_equal(found.result, plain(products, number, a, b))
    assert (found.repaired, found.lasting) == (0, 0)


@pytest.mark.parametrize("number", range(len(SHAPES) + 1))
@pytest.mark.parametrize("bit", [22, 25, 30, 31])
def test_a_flipped_sum_is_repaired(products, number, bit):
    shape = (*SHAPES, DYNAMIC)[number]
    a, b = drawn(shape, bit)
    rows, columns = a.shape[0], b.shape[1]
    sound = plain(products, number, a, b)
    for row, column in ((0, 0), (rows - 1, columns - 1), (rows // 2, columns // 2)):
        # Sums near 0 have bits that nobody could notice.
        if bit == 22 and abs(sound[row, column]) < 0.1 * np.abs(sound).max():
            continue
        found = checked(products, number, a, b, flip_of(row, column, bit))
        assert np.array_equal(found.result, sound)
        assert found.repaired >= 1 and found.lasting == 0


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_damaged_weights_are_found(products, number):
    a, b = drawn(SHAPES[number], number)
    arguments = products.arguments(2 * number + 1, a, b, NOWHERE)
    packed = arguments[1].numpy().copy()
    packed.view(np.uint32)[0] ^= np.uint32(1 << 30)
    arguments[1] = to_device(packed, products.device)
    assert products.found(2 * number + 1, arguments).lasting >= 1


def test_damage_between_two_products_is_not_seen(products):
    """Checks begin with what is read: the second result is that of the damaged numbers."""
    a, b = drawn(SHAPES[0], 8)
    memory = checked(products, 0, a, b).result.copy()
    memory.view(np.uint32)[3, 5] ^= np.uint32(1 << 30)
    found = checked(products, 0, memory, b)
    assert np.array_equal(found.result, plain(products, 0, memory, b))
    assert (found.repaired, found.lasting) == (0, 0)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, 1e-40, 0.0])
def test_numbers_at_the_ends_of_the_range_are_no_faults(products, special):
    a, b = drawn(SHAPES[1], 3)
    a[0, :] = special
    b[:, 5] = special if special != 3e38 else 1.0
    found = checked(products, 1, a, b)
    assert np.array_equal(found.result, plain(products, 1, a, b), equal_nan=True)
    assert (found.repaired, found.lasting) == (0, 0)


def test_rows_that_cancel_are_computed_again_and_right(products):
    _, b = drawn(SHAPES[1], 4)
    a = np.ones((17, 100), np.float32)
    b = (1e4 * (b - b.mean(axis=0))).astype(np.float32)
    found = checked(products, 1, a, b)
    assert np.array_equal(found.result, plain(products, 1, a, b))
    assert (found.repaired, found.lasting) == (0, 0)


def test_the_sums_of_panels_are_those_of_the_columns_with_signs():
    layout = PanelSums(70, 5, 64)
    b = np.random.default_rng(0).normal(size=(5, 70)).astype(np.float32)
    packed = layout.pack(b)
    assert packed.size == layout.size == 2 * 7
    wide = np.zeros((5, 128))
    wide[:, :70] = b
    for panel in range(2):
        part = wide[:, panel * 64 : panel * 64 + 64]
        assert np.allclose(packed[panel * 5 : panel * 5 + 5], part @ signs(64), atol=1e-6)
        norm = np.linalg.norm(np.abs(part).sum(axis=1))
        assert norm <= packed[layout.norms + panel] <= norm * 1.00001
        word = part.astype(np.float32).view(np.uint32).sum(dtype=np.uint32)
        assert packed.view(np.uint32)[layout.words + panel] == word


def test_a_checked_kernel_has_sums_and_faults_beside_its_products():
    knobs = CheckedGemm(Gemm(4, 64, 64, layer(bias=True)))
    names = [o.name for o in knobs.kernel("k").operands]
    assert names == ["a", "b", "sums", "e0", "c", "faults"]


def test_tiles_of_short_vectors_are_lower():
    neon = Target.named("cpu-neon")
    plain = KernelOffer(Gemm.on(neon, 13, 64, 64), 1, (Feed(0, (1,)), Feed(1, (1,))), Cost())
    made = FAMILY.checked(plain, neon)
    assert made is not None
    knobs = made.knobs
    assert knobs.product.height == 4 and FAMILY.offers(knobs, neon)
