"""The counter-based random numbers: the known answers of Random123."""

import numpy as np
import pytest
from random_formulas import PHILOX, THREEFRY, joined, philox, threefry

from pyc_mlir.dialects.ir.builder import NumpyBuilder
from pyc_mlir.dialects.opdef import OPS


@pytest.mark.parametrize(("counter", "key", "answer"), THREEFRY)
def test_threefry_known_answers(counter, key, answer):
    """The op's reference, its decomposition and the tests' own formula give the published words."""
    given = [np.array(joined(*words), np.uint64) for words in (counter, key)]
    b, expected = NumpyBuilder(), joined(*answer)
    op = OPS["threefry"]
    assert op.decompose is not None
    assert int(op.reference(*given)) == int(op.decompose(b, *given)) == expected
    assert threefry(*map(int, given)) == expected


@pytest.mark.parametrize(("counter", "key", "answer"), PHILOX)
def test_philox_known_answers(counter, key, answer):
    """As above, of the first two of four words."""
    given = [np.array(joined(*w), np.uint64) for w in (counter[:2], counter[2:], key)]
    b, expected = NumpyBuilder(), joined(*answer[:2])
    op = OPS["philox"]
    assert op.decompose is not None
    assert int(op.reference(*given)) == int(op.decompose(b, *given)) == expected
    assert philox(*map(int, given)) == expected
