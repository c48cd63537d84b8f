"""Element types and dynamic sizes as users write them: what has one meaning, what is refused."""

import numpy as np
import pytest

from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import Tensor, TensorSpec, spec
from pyc_mlir.frontends.python.trace import trace

SPEC = TensorSpec("f32", "n")


def test_names_of_element_types():
    names = {"float32": "f32", "int8": "i8", "bool": "i1", "half": "f16", "i8": "i8", "i1": "i1"}
    assert all(spec(text) == spec(name) for text, name in names.items())


@pytest.mark.parametrize(
    "make", [spec, TensorSpec, lambda t: Tensor[t, 2], lambda t: nn.iota(3, 0, t)]
)
@pytest.mark.parametrize(
    "code, meant",
    [("i4", "i32"), ("f4", "f32"), ("<f8", "f64"), ("d", "f64"), ("?", "i1"), ("|i4", "i32")],
)
def test_codes_that_count_bytes_are_refused(make, code, meant):
    """MLIR's "i8" has 8 bits, numpy's 8 bytes; beside it "i4" is no way to say 32 bits."""
    with pytest.raises(PycError, match=f"counts bytes; write '{meant}'") as caught:
        make(code)
    assert caught.value.code is ReasonCode.UNSUPPORTED_DTYPE


def test_sizes_are_refused_wherever_their_value_is_asked_for():
    """By numpy's functions, too, which ask in many ways."""
    for function in (
        lambda x: np.arange(x.shape[0]),
        lambda x: np.arange(0, x.shape[0], 2) + x,
        lambda x: np.array(x.shape),
        lambda x: np.indices(x.shape),
        lambda x: np.mgrid[0 : x.shape[0]],
        lambda x: abs(x.shape[0]),
        lambda x: round(x.shape[0]),
        lambda x: divmod(x.shape[0], 2),
        lambda x: x.shape[0] << 1,
        lambda x: x.shape[0] & 1,
        lambda x: f"{x.shape[0]:d}",
    ):
        with pytest.raises(PycError) as caught:
            trace(function, SPEC)
        assert caught.value.code is ReasonCode.UNTRACEABLE
        assert "`n` is not known" in (reported := caught.value.message) and "nn.iota" in reported
    trace(lambda x: (f"{x.shape[0]} {x.shape[0]:>4}", x)[1], SPEC)
