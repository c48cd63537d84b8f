"""Parameters as attributes and back, for every element type, inline and as resources."""

import numpy as np
import pytest
from op_modules import module_of

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import (
    INLINE_BYTES,
    array_of,
    as_resource,
    decode,
    elements_attr,
    encode,
)
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import Param
from pyc_mlir.dialects.types import DTYPES, is_float

SHAPES = [(), (1,), (2, 3), (0,), (0, 3), (300,), (40, 40), (2, 0, 2)]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 3.0, -2.5]


@pytest.fixture(autouse=True)
def context():
    with new_context() as context, ir.Location.unknown():
        yield context


def content(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(0)
    if name == "i1":
        return rng.integers(0, 2, shape).astype(bool)
    if name.startswith("i"):
        info = np.iinfo(DTYPES[name])
        return rng.integers(info.min, info.max, shape, DTYPES[name], endpoint=True)
    return (rng.normal(size=shape) * 100).astype(DTYPES[name])


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled(20)
def test_contents_survive(name, shape):
    for array in (
        content(name, shape),
        np.ones(shape, DTYPES[name]),
        np.zeros(shape, DTYPES[name]),
    ):
        same(array_of(elements_attr(array)), array)


@pytest.mark.parametrize("name", [n for n, d in DTYPES.items() if is_float(d)])
def test_special_values_survive_bit_by_bit(name):
    with np.errstate(all="ignore"):
        array = np.array(SPECIAL, DTYPES[name])
    same(array_of(elements_attr(array)), array)
    for value in array:
        same(array_of(elements_attr(np.full(3, value))), np.full(3, value))
    assert np.signbit(array_of(elements_attr(array))[3])
    large = np.tile(array, 500)
    same(array_of(elements_attr(large)), large)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3), (700,)], ids=str)
@pytest.mark.sampled(20)
def test_contents_survive_text_and_bytecode(name, shape):
    from io import BytesIO

    array = content(name, shape)
    module = constant_module(array)
    data = BytesIO()
    module.operation.write_bytecode(data)
    for source in (str(module), data.getvalue()):
        fresh = new_context()
        same(interpret(ir.Module.parse(source, fresh), [])[0], array)


def constant_module(array: np.ndarray) -> ir.Module:
    return module_of(lambda b: b.constant(array), [], ir.Context.current)


def test_large_arrays_are_resources_and_equal_ones_are_shared():
    large = np.arange(INLINE_BYTES, dtype=np.float32)
    first, second = elements_attr(large), elements_attr(large.copy())
    assert as_resource(first) is not None and str(first) == str(second)
    assert str(elements_attr(large + 1)) != str(first)
    assert str(elements_attr(large.reshape(2, -1))) != str(first)
    assert as_resource(elements_attr(large[:4])) is None
    assert as_resource(elements_attr(np.ones(9999, np.float32))) is None
    assert not array_of(first).flags.writeable


def test_a_resource_of_unknown_size_is_refused():
    text = str(constant_module(np.arange(1000, dtype=np.float32))).replace("1000x", "?x")
    with pytest.raises(ir.MLIRError, match="expected a static shape"):
        ir.Module.parse(text, new_context())


def test_a_resource_is_a_copy():
    large = np.arange(INLINE_BYTES, dtype=np.float32)
    attr = elements_attr(large)
    large[:] = -1
    assert array_of(attr)[5] == 5


def test_views_are_stored_in_their_own_order():
    array = np.arange(1000, dtype=np.int32).reshape(20, 50)
    for view in (array.T, array[::2, ::-1], array[:3, :2].T, np.broadcast_to(array[0], (9, 50))):
        same(array_of(elements_attr(view)), view)


def test_element_types_that_pyc_lacks_are_refused():
    for dtype in (np.complex64, np.longdouble):
        with pytest.raises(VerificationError, match="element type"):
            elements_attr(np.ones(3, dtype))


PARAMS = [
    (int, [0, -1, 2**63 - 1, -(2**63)]),
    (float, [0.0, -2.5, 1e300, float("inf")]),
    (bool, [True, False]),
    (str, ["", "NCHW", 'with "quotes"\n']),
    (np.dtype, list(DTYPES.values())),
    (tuple[int, ...], [(), (1,), (-1, 2**63 - 1, -(2**63))]),
    (tuple[float, ...], [(), (2.0,), (0.1, float(np.float32(0.6)), -1e300)]),
]


@pytest.mark.parametrize("kind, values", PARAMS, ids=[str(p[0]) for p in PARAMS])
def test_parameters_survive(kind, values):
    param = Param("p", kind, None)
    for value in values:
        attr = encode(value, kind)
        assert decode(attr, param) == value
        assert decode(ir.Attribute.parse(str(attr)), param) == value


@pytest.mark.parametrize("kind, values", PARAMS, ids=[str(p[0]) for p in PARAMS])
def test_an_attribute_of_another_kind_is_refused(kind, values):
    for other, examples in PARAMS:
        if other is not kind:
            with pytest.raises(VerificationError, match="`p`: expected"):
                decode(encode(examples[-1], other), Param("p", kind, None))


@pytest.mark.parametrize("text", ["1 : i32", "1 : index", "unit", "[1, 2]", "1.0 : f32", "@f"])
def test_near_misses_are_refused(text):
    for kind in (int, bool, str, tuple[int, ...], tuple[float, ...], np.ndarray, np.dtype):
        with pytest.raises(VerificationError, match="expected"):
            decode(ir.Attribute.parse(text), Param("p", kind, None))
