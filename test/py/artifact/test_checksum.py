"""The quick checksum: what was written is told from what came of it."""

import numpy as np
import pytest

from pyc_mlir.util.checksum import checksum

PAGE = 4096
SIZES = (0, 1, 8, PAGE - 1, PAGE, PAGE + 1, 256 * PAGE, 257 * PAGE + 3)
DATA = np.random.default_rng(7).integers(0, 256, 513 * PAGE + 5, dtype=np.uint8)


def of(data: np.ndarray) -> str:
    return checksum(data.tobytes())


def test_sizes_and_kinds_of_data():
    sums = {of(DATA[:n]) for n in SIZES}
    assert len(sums) == len(SIZES)
    zeros = {checksum(bytes(n)) for n in SIZES}
    assert len(zeros) == len(SIZES) and len(sums & zeros) == 1
    assert checksum(DATA.data) == of(DATA)


def test_one_bit_anywhere():
    draw = np.random.default_rng(8)
    data, whole = DATA.copy(), of(DATA)
    for place in (0, PAGE - 1, PAGE, len(data) - 1, *draw.integers(0, len(data), 100)):
        data[place] ^= 1 << int(draw.integers(8))
        assert of(data) != whole
        data[place] = DATA[place]
    assert of(data) == whole


@pytest.mark.parametrize("first, count", [(0, PAGE), (3 * PAGE, PAGE), (5 * PAGE, 8 * PAGE)])
def test_damage_of_whole_pages(first, count):
    """Pages that were lost, shifted, or written where others belong."""
    changed = DATA.copy()
    changed[first : first + count] = 0
    assert of(changed) != of(DATA)
    changed[first : first + count] = np.roll(DATA[first : first + count], 8)
    assert of(changed) != of(DATA)
    changed[:] = DATA
    other = 200 * PAGE
    changed[first : first + count] = DATA[other : other + count]
    changed[other : other + count] = DATA[first : first + count]
    assert of(changed) != of(DATA)
