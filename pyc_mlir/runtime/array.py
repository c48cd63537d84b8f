"""A device array: memory on a `Device` with a shape and an element type, kept alive while seen.

IREE's own array loses its memory when only a numpy view of it is left
(``f(x).to_host()[:, :10]``); here every view holds the array, and every array its device.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from iree import runtime as rt
from iree.runtime.dtypes import map_dtype_to_hal_element_type

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import dtype_name, require_plain
from pyc_mlir.runtime.device import Device

# DLPack's device codes: kDLCPU, kDLCUDA, kDLVulkan, kDLROCM.
_DLPACK_CODES = {"cuda": 2, "vulkan": 7, "hip": 10}
_DLPACK_CPU = 1
# Drivers whose DLPack memory is at an address; where `byte_offset` stands in a DLTensor.
_WITH_POINTERS = ("cuda", "hip")
_DLPACK_OFFSET = 40
# Results up to this size are copied to numpy.
_COPIED_BYTES = 1 << 14
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
# IREE's devices whose memory went to another library, which does not keep the device alive.
_EXPORTED: set[Any] = set()

Spec = tuple[tuple[int, ...], np.dtype, Device]


class Array:
    """An array on a device; immutable through this object.

    `spec` is (shape, dtype, device), what guards check; `view` is IREE's buffer view. An array
    that was donated keeps shape, type and device; all else raises PycError (DONATED_ARRAY).
    """

    # CPython frees slots in the order of their names, so the memory goes before IREE's device.
    # The device is held directly: a collector that breaks a cycle may clear `Device` first.
    # `_address` is there once it was asked for.
    __slots__ = ("__weakref__", "_address", "_buffer", "_hal", "spec")

    def __init__(self, view: rt.HalBufferView, spec: Spec) -> None:
        self._buffer = view
        self.spec = spec
        self._hal = spec[2].hal

    @property
    def view(self) -> rt.HalBufferView:
        """IREE's buffer view of the memory."""
        require_present(self)
        return self._buffer

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self.spec[0]

    @property
    def dtype(self) -> np.dtype:
        """The element type (bf16 is `ml_dtypes.bfloat16`)."""
        return self.spec[1]

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return self.spec[2]

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        dims = "x".join(map(str, self.shape))
        gone = "" if self.is_present else ", donated"
        return f"Array({dims or 'scalar'} {dtype_name(self.dtype)} on {self.device.kind}{gone})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a rank-0 array")
        return self.shape[0]

    @property
    def is_present(self) -> bool:
        """False once the memory was donated to a result."""
        return len(self.spec) == 3

    def give_away(self) -> None:
        """Donate the memory: it belongs to a result from now on."""
        # No accepted call has such a spec, so that the short way of calls sees it too. The
        # memory stays held: views that numpy got before may still read it.
        gone: Any = (*self.spec[:3], "donated")
        self.spec = gone

    def numpy(self) -> np.ndarray:
        """Return the elements as numpy: a read-only view on CPUs, elsewhere a copy."""
        host = self.host()
        host.flags.writeable = not self.device.is_cpu
        return host

    def host(self) -> np.ndarray:
        """Return the array as `numpy`, but writable: for the one owner of a fresh result."""
        require_present(self)
        if not self.device.is_cpu or self.nbytes == 0:
            require_held(self._buffer, (tuple(self._buffer.shape), self.dtype, self.device))
            return self.device.download(self._buffer, self.dtype)
        return np.asarray(_HostMemory(self)).view(self.dtype)

    def on(self, device: Device) -> "Array":
        """Return the array on another device: its memory is shared between CPUs, else copied."""
        if self.device is device:
            return self
        if not (self.nbytes and self.device.is_cpu and device.is_cpu):
            return Array(device.upload(self.numpy()), (self.shape, self.dtype, device))
        shared = import_dlpack(self, device)
        shared.spec = (self.shape, self.dtype, device)
        return shared

    def own(self) -> np.ndarray:
        """Return a fresh result as numpy: a small one copied, which costs less than sharing it."""
        size = self.nbytes
        if not self.device.is_cpu or not 0 < size <= _COPIED_BYTES:
            return self.host()
        require_held(self.view, self.spec)
        mapped: Any = self._buffer.map().asarray(self.shape, self.dtype)
        return mapped.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        host = self.numpy()
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"expected {dtype} without a copy, got {self.dtype}")
            return host.astype(dtype)
        return host.copy() if copy else host

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CODES.get(self.device.kind, _DLPACK_CPU), 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Share the memory as a DLPack capsule, not copied. Results are complete: no stream.

        Raises BufferError where the consumer asks for a copy or for another device, and where
        IREE's driver shares no memory (Vulkan).
        """
        code, index = self.__dlpack_device__()
        require_present(self)
        if copy or (dl_device is not None and tuple(dl_device) != (code, index)):
            raise BufferError(f"{self!r} can only be shared where it is: {(code, index)}")
        try:
            capsule = self._hal.create_dlpack_capsule(self._buffer, code, index)
        except RuntimeError as error:
            raise BufferError(f"{self!r} cannot be shared: {error}") from None
        _EXPORTED.add(self._hal)
        return capsule


class _HostMemory:
    """Numpy's array interface to CPU memory: numpy keeps this object as the base of all views."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        require_held(array.view, array.spec)
        mapped: Any = array.view.map().asarray(array.shape, array.dtype)
        address = mapped.__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            # Raw bytes: numpy's interface has no name for bf16.
            "typestr": f"|V{array.dtype.itemsize}",
            "data": (address, False),
        }


def require_present(array: Array) -> None:
    """Raise PycError (DONATED_ARRAY) for an array whose memory was donated."""
    if not array.is_present:
        raise PycError(
            ReasonCode.DONATED_ARRAY,
            f"{array!r}: expected an array that has its memory, got one that was donated to a "
            "result; use that result, or call without `donate`",
        )


def require_held(view: rt.HalBufferView, spec: Spec) -> None:
    """Raise PycError (BAD_ARTIFACT) unless the memory holds all elements that the spec counts.

    Shapes and types of results come from a file; numpy and IREE believe what they are told.
    """
    needed, held = math.prod(spec[0]) * spec[1].itemsize, view.byte_length
    if needed > held:
        raise PycError(
            ReasonCode.BAD_ARTIFACT,
            f"result: expected {needed} bytes for {list(spec[0])} of {dtype_name(spec[1])}, got "
            f"memory of {held}; the program is not the one that its manifest describes: compile "
            "it again",
        )


def require_unchanged(arrays: Sequence[Array], before: Sequence[np.ndarray]) -> None:
    """Raise PycError (WRONG_RESULT) unless a call left its arguments as they were before."""
    for number, pair in enumerate(zip(arrays, before, strict=True)):
        one, other = (np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in pair)
        if not np.array_equal(one, other):
            message = f"argument {number}: expected it as it was, got it changed by the call"
            raise PycError(ReasonCode.WRONG_RESULT, message)


def overlap(one: Array, other: Array) -> bool:
    """Return whether two arrays of one device share memory, or may: some addresses are hidden."""
    if one is other or one.view is other.view:
        return True
    if one.nbytes == 0 or other.nbytes == 0:
        return False
    first, second = _address_of(one), _address_of(other)
    if first is None or second is None:
        # IREE's stubs leave out `ref`.
        mine: Any = one.view.get_buffer()
        theirs: Any = other.view.get_buffer()
        return mine.ref == theirs.ref
    return first < second + other.nbytes and second < first + one.nbytes


def reinterpreted(source: Array, spec: Spec) -> Array:
    """View the memory of an array as one of as many bytes, or fewer. Raises PycError."""
    require_held(source.view, spec)
    kind: Any = map_dtype_to_hal_element_type(spec[1])
    return Array(rt.HalBufferView(source.view.get_buffer(), list(spec[0]), kind), spec)


def copy(source: Array, target: Array) -> None:
    """Copy the elements of one array into another of the same shape, type and device."""
    if source.nbytes == 0:
        return
    if source.device.is_cpu:
        np.copyto(target.host(), source.host())
    else:
        source.device.copy(source.view.get_buffer(), target.view.get_buffer())


def _address_of(array: Array) -> int | None:
    """Return the device address of the elements; None where IREE's driver does not tell."""
    try:
        return array._address
    except AttributeError:
        array._address = _find_address(array)
        return array._address


def _find_address(array: Array) -> int | None:
    if array.device.is_cpu:
        return _HostMemory(array).__array_interface__["data"][0]
    if array.device.kind not in _WITH_POINTERS:
        return None
    # The head of DLPack's DLManagedTensor: the pointer, and at byte 40 the offset behind it.
    code, index = array.__dlpack_device__()
    capsule: Any = array._hal.create_dlpack_capsule(array.view, code, index)
    head = _capsule_pointer(capsule, b"dltensor")
    pointer = ctypes.c_uint64.from_address(head).value
    return pointer + ctypes.c_uint64.from_address(head + _DLPACK_OFFSET).value


def to_device(source: Any, device: Device) -> Array:
    """Put `source` on `device`: numpy arrays, our arrays, IREE's, anything with DLPack.

    An array that is there already is returned itself; everything else is copied, except DLPack
    memory that `readable` shares. Raises PycError: BAD_ARGUMENT for anything that is not an
    array, UNSUPPORTED_DTYPE.
    """
    seen = readable(source, device)
    if isinstance(seen, Array) and seen.device is device:
        return seen
    host = seen.numpy() if isinstance(seen, Array) else seen
    return Array(device.upload(host), (host.shape, host.dtype, device))


def readable(source: Any, device: Device) -> np.ndarray | Array:
    """`source` as something with a shape and an element type, its memory left where it is.

    DLPack memory of the device's own kind, and bf16 on the host, which numpy does not read, is
    shared with `device`. Raises PycError (BAD_ARGUMENT) for anything that is not an array, and for
    masked arrays.
    """
    if isinstance(source, np.ndarray):
        require_plain(source, "argument")
        return source
    if isinstance(source, Array):
        require_present(source)
        return source
    if isinstance(source, rt.DeviceArray):
        return source.to_host()
    if isinstance(source, np.generic):
        return np.asarray(source)
    if is_on_device(source):
        return import_dlpack(source, device)
    try:
        if hasattr(source, "__dlpack__"):
            return np.from_dlpack(source)
        if hasattr(source, "__array__"):
            return np.asarray(source)
    except (RuntimeError, TypeError, ValueError, BufferError):
        return import_dlpack(source, device)
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        "argument: expected a numpy array, a device array or DLPack, got "
        f"{type(source).__name__}; wrap plain values in `np.asarray`",
    )


def import_dlpack(source: Any, device: Device) -> Array:
    """Share DLPack memory that `device` can reach; on CPUs it must be aligned to 64 bytes.

    Raises PycError (BAD_ARGUMENT).
    """
    try:
        view = device.hal.from_dlpack_capsule(source.__dlpack__())
    except (AttributeError, BufferError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{type(source).__name__}: expected DLPack memory that {device!r} can import, "
            f"got: {error}",
        ) from None
    dtype = np.dtype(rt.HalElementType.map_to_dtype(view.element_type))
    return Array(view, (tuple(view.shape), dtype, device))


def is_on_device(source: Any) -> bool:
    """Return whether it is our array, IREE's, or DLPack memory that is not the host's."""
    if isinstance(source, (Array, rt.DeviceArray)):
        return True
    if isinstance(source, np.ndarray) or not hasattr(source, "__dlpack_device__"):
        return False
    return int(source.__dlpack_device__()[0]) != _DLPACK_CPU
