"""Sizes and durations with units."""

import pytest

from pyc_mlir.dialects.util import quantities


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("2KiB", 2048)],
)
def test_sizes(text, expected):
    assert quantities.size(text) == expected


@pytest.mark.parametrize("read", [quantities.size, quantities.duration])
def test_quantities_beyond_all_numbers(read):
    with pytest.raises(ValueError, match="beyond"):
        read("9" * 400)


def test_durations():
    assert [quantities.duration(t) for t in ("5ms", "2min", "1.5")] == [0.005, 120.0, 1.5]
    with pytest.raises(ValueError, match="number"):
        quantities.duration("5 hours")
