"""Tensors to and from a program's arrays, over the same memory, and tensors that are watched.

`Arguments` brings a call's tensors to the program. On CPUs it shares a weight's memory in place of
copying it, so that every write is seen, by whatever way it came; the array over it is made anew
when the module has another tensor in its place, or the tensor has other memory.

`Watch` tells whether tensors that were compiled in as constants are still what they were, as far as
identity, address, torch's version counter and a sample of their elements show it.
"""

import atexit
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.torch.ops.handler import numpy_view
from pyc_mlir.runtime.array import Array, import_dlpack, to_device
from pyc_mlir.runtime.device import Device

_BF16 = np.dtype(ml_dtypes.bfloat16)
_Tensor: Any = torch.Tensor
# Results by their ids, while they live.
_SHARED: dict[int, weakref.ref[Any]] = {}
# Smaller tensors are copied in less time than sharing them takes.
_SHARED_BYTES = 1 << 15
# What IREE's CPU devices ask of shared memory.
_ALIGNMENT = 64
# A watched tensor of so many bytes is compared whole, of a larger one about so many elements.
_WHOLE_BYTES, _SAMPLES = 1 << 10, 16


def array_of(tensor: Any) -> np.ndarray:
    """Return a CPU tensor's memory as an array. Raises PycError (UNSUPPORTED_DTYPE)."""
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        # bf16, which numpy does not know, and tensors that a gradient is recorded for.
        return numpy_view(tensor)


def tensor_of(array: np.ndarray) -> Any:
    """Return a fresh result's memory as a tensor."""
    if array.dtype == _BF16:
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    key = id(tensor)
    _SHARED[key] = weakref.ref(tensor, lambda _: _SHARED.pop(key, None))
    return tensor


@atexit.register
def _release() -> None:
    """Drop torch's compiled graphs when Python ends, and copy results that still live.

    torch would keep both beyond that end, where IREE's bindings report each object as leaked.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    for reference in list(_SHARED.values()):
        if (tensor := reference()) is not None:
            tensor.data = tensor.data.clone()


def arrays_of(tensors: Sequence[Any]) -> list[Any]:
    """Return the arrays of tensors; other values unchanged."""
    return [array_of(t) if isinstance(t, _Tensor) else t for t in tensors]


Sources = Sequence[int | Callable[[Sequence[Any]], np.ndarray]]


class Arguments:
    """Makes a program's arguments of the tensors and numbers of a call.

    sources: as `CompiledGraph.arguments`. static: which of the call's arguments are tensors of
        the module, whose sizes and strides torch guards.
    """

    def __init__(self, sources: Sources, static: Iterable[int], device: Device) -> None:
        kept = set(static) if device.is_cpu else set()
        self._device = device
        self._given = [(n, s) for n, s in enumerate(sources) if s not in kept]
        self._kept = [(n, s) for n, s in enumerate(sources) if isinstance(s, int) and s in kept]
        # By input: a tensor, its address, and the array that shares its memory. The array keeps
        # the memory, so that no other tensor can come to lie there.
        self._shared: list[tuple[Any, int, Any]] = [(None, 0, None)] * len(sources)

    def __call__(self, args: Sequence[Any]) -> list[Array]:
        """Return the arguments of one call. Raises PycError as `array_of`."""
        out: list[Any] = [None] * len(self._shared)
        for n, i in self._kept:
            tensor = args[i]
            held, address, array = self._shared[n]
            same = tensor is held and tensor.data_ptr() == address
            out[n] = array if same else self._keep(n, tensor)
        device = self._device
        for n, source in self._given:
            given = source(args) if callable(source) else args[source]
            out[n] = to_device(given, device) if callable(source) else _brought(given, device)
        return out

    def _keep(self, n: int, tensor: Any) -> Array:
        array = _shared(tensor, self._device)
        if array is None:
            return to_device(array_of(tensor), self._device)
        self._shared[n] = tensor, tensor.data_ptr(), array
        return array


def _brought(tensor: Any, device: Device) -> Array:
    """Return a tensor on the device: shared if it is large, else copied."""
    array = _shared(tensor, device) if tensor.nbytes >= _SHARED_BYTES else None
    return to_device(array_of(tensor), device) if array is None else array


def _shared(tensor: Any, device: Device) -> Array | None:
    """Return a tensor's memory as an array of the device; None if it has to be copied."""
    plain = tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())
    if not plain or not device.is_cpu or tensor.data_ptr() % _ALIGNMENT:
        return None
    try:
        return import_dlpack(tensor.detach(), device)
    except PycError:
        return None


class Watch:
    """The past state of frozen tensors, by their numbers among a call's arguments."""

    def __init__(self, tensors: Mapping[int, Any]) -> None:
        self._seen = [(i, t, t.data_ptr(), _version(t), *_sample(t)) for i, t in tensors.items()]

    def changed(self, args: Sequence[Any]) -> list[int]:
        """Return the numbers of the tensors that were replaced or written."""
        return [
            i
            for i, tensor, address, version, view, content in self._seen
            if args[i] is not tensor
            or tensor.data_ptr() != address
            or _version(tensor) != version
            or view.tobytes() != content
        ]


def _version(tensor: Any) -> int:
    """torch's count of writes; it counts none of tensors that were made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def _sample(tensor: Any) -> tuple[np.ndarray, bytes]:
    """Return a view of some of the elements, of small tensors all, and their current bytes."""
    extent = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0:
        extent = 0
    flat = numpy_view(tensor.detach().as_strided((extent,), (1,), tensor.storage_offset()))
    if flat.nbytes > _WHOLE_BYTES:
        # An odd step, so that a matrix is not looked at in one column only.
        flat = flat[:: extent // _SAMPLES | 1]
    return flat, flat.tobytes()
