"""onnxruntime on CPUs: a model under each of its settings, and the bytes in use in its arena.

Its Python package does not tell the bytes, its C interface does (`AllocatorGetStats`, since 1.23).
The interface is a table of functions to which releases only append, so positions stay; they are
those of ``OrtApi`` in onnxruntime_c_api.h. In use are whole chunks: the arena grows in powers of
two and splits a chunk only if that leaves much (bfc_arena.cc), so that the figure may be up to
twice what tensors need.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.tools.bench.peers.prepared import Named, PreparedWorkload

# onnxruntime's workers spin for 50 ms after a call, unless told to stop or not to spin at all.
_SPINNING = {
    "spinning": {},
    "spinning in calls": {"session.force_spinning_stop": "1"},
    "no spinning": {"session.intra_op.allow_spinning": "0"},
}


def settings(model: bytes, inputs: Sequence[np.ndarray], threads: int) -> Named:
    """Return sessions with and without spinning workers. Raises ModuleNotFoundError.

    One thread has no worker that could spin.
    """
    import onnxruntime as ort  # pyright: ignore[reportMissingImports]

    spinning = _SPINNING if threads > 1 else {"one thread": {}}
    for name, entries in spinning.items():
        for how, prepared in _sessions(ort, model, inputs, threads, entries):
            yield f"{how}, {name}", prepared


def _sessions(
    ort: Any,
    model: bytes,
    inputs: Sequence[np.ndarray],
    threads: int,
    entries: Mapping[str, str],
) -> Iterator[tuple[str, PreparedWorkload]]:
    """Yield one session, called in both ways that its API has."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    yield (
        "run",
        PreparedWorkload(partial(session.run, None, feeds), partial(session.run, None, feeds)),
    )
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)

    def results() -> list[np.ndarray]:
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    yield "io binding", PreparedWorkload(partial(session.run_with_iobinding, binding), results)


# The first version whose table has all that is used here.
_VERSION = 23
_POSITIONS = {
    "GetErrorMessage": 2, "CreateEnv": 3, "CreateSession": 7, "Run": 9, "CreateSessionOptions": 10,
    "SetIntraOpNumThreads": 24, "CreateTensorWithDataAsOrtValue": 49, "CreateCpuMemoryInfo": 69,
    "ReleaseEnv": 92, "ReleaseMemoryInfo": 94, "ReleaseSession": 95, "ReleaseValue": 96,
    "ReleaseSessionOptions": 100, "CreateAllocator": 131, "ReleaseAllocator": 132,
    "GetKeyValue": 297, "ReleaseKeyValuePairs": 300, "AllocatorGetStats": 319,
}  # fmt: skip
_WARNINGS, _DEVICE_ALLOCATOR, _DEFAULT_MEMORY = 2, 0, 0
# The first run allocates buffer by buffer, later ones a block of the size that it saw.
_RUNS = 2


class _Interface:
    """The table of functions of one library."""

    def __init__(self, library: Path) -> None:
        base = ctypes.CDLL(str(library)).OrtGetApiBase
        base.restype = POINTER(c_void_p * 2)
        get = ctypes.CFUNCTYPE(c_void_p, c_uint32)(base().contents[0] or 0)
        self._table = ctypes.cast(get(_VERSION), POINTER(c_void_p))

    def function(self, name: str, result: Any) -> Any:
        """Return the function of that name; arguments are converted as ctypes does."""
        address = self._table[_POSITIONS[name]]
        return ctypes.CFUNCTYPE(result)(address or 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that answers with a status. Raises PycError (RUNTIME_FAILED)."""
        status = self.function(name, c_void_p)(*arguments)
        if status:
            text = self.function("GetErrorMessage", c_char_p)(c_void_p(status))
            raise PycError(
                ReasonCode.RUNTIME_FAILED, f"onnxruntime: {name}: {text.decode(errors='replace')}"
            )

    def made(self, name: str, *arguments: Any) -> c_void_p:
        """Return the value that a function writes to its last argument."""
        pointer = c_void_p()
        self.call(name, *arguments, byref(pointer))
        return pointer

    def kept(self, stack: ExitStack, kind: str, name: str, *arguments: Any) -> c_void_p:
        """Return the same value; it is released at the end of `stack`."""
        pointer = self.made(name, *arguments)
        stack.callback(self.function(f"Release{kind}", None), pointer)
        return pointer


def peak_bytes(model: Path, inputs: Sequence[np.ndarray], threads: int) -> int:
    """Return the most bytes that two runs had in use above the session's before them.

    Results are among them, inputs and weights are not. Raises ModuleNotFoundError without
    onnxruntime, and PycError (RUNTIME_FAILED) for a model that it refuses.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    feeds, results = _names(onnxruntime, model, inputs)
    folder = Path(str(onnxruntime.__file__)).parent / "capi"
    (library,) = folder.glob("libonnxruntime.so*")
    api = _Interface(library)
    with ExitStack() as kept:
        environment = api.kept(kept, "Env", "CreateEnv", c_int(_WARNINGS), b"pyc-bench")
        options = api.kept(kept, "SessionOptions", "CreateSessionOptions")
        api.call("SetIntraOpNumThreads", options, c_int(threads))
        named = str(model).encode()
        session = api.kept(kept, "Session", "CreateSession", environment, named, options)
        place = c_int(_DEVICE_ALLOCATOR), c_int(_DEFAULT_MEMORY)
        info = api.kept(kept, "MemoryInfo", "CreateCpuMemoryInfo", *place)
        arena = api.kept(kept, "Allocator", "CreateAllocator", session, info)
        before = _statistic(api, arena, "InUse")
        for _ in range(_RUNS):
            _run(api, session, info, feeds, results)
        return _statistic(api, arena, "MaxInUse") - before


def _names(
    ort: Any, model: Path, inputs: Sequence[np.ndarray]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the arrays by the inputs' names, and the results' names."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    return feeds, [o.name for o in session.get_outputs()]


def _run(
    api: _Interface,
    session: c_void_p,
    info: c_void_p,
    feeds: Mapping[str, np.ndarray],
    results: Sequence[str],
) -> None:
    with ExitStack() as kept:
        values = [_value(api, kept, info, array).value for array in feeds.values()]
        given = (c_void_p * len(values))(*values), c_size_t(len(values))
        made = (c_void_p * len(results))()
        bench = _texts(results), c_size_t(len(results))
        api.call("Run", session, c_void_p(), _texts(tuple(feeds)), *given, *bench, made)
        release = api.function("ReleaseValue", None)
        for pointer in made:
            release(c_void_p(pointer))


def _value(api: _Interface, kept: ExitStack, info: c_void_p, array: np.ndarray) -> c_void_p:
    """Return the array as onnxruntime's value, without a copy."""
    from onnx.helper import np_dtype_to_tensor_dtype

    shape = (c_int64 * array.ndim)(*array.shape)
    # onnxruntime numbers element types as ONNX does.
    size, element = c_size_t(array.nbytes), c_int(np_dtype_to_tensor_dtype(array.dtype))
    data = c_void_p(array.ctypes.data)
    rank = c_size_t(array.ndim)
    create = "CreateTensorWithDataAsOrtValue"
    return api.kept(kept, "Value", create, info, data, size, shape, rank, element)


def _texts(names: Sequence[str]) -> Any:
    return (c_char_p * len(names))(*(name.encode() for name in names))


def _statistic(api: _Interface, arena: c_void_p, key: str) -> int:
    with ExitStack() as kept:
        pairs = api.kept(kept, "KeyValuePairs", "AllocatorGetStats", arena)
        return int(api.function("GetKeyValue", c_char_p)(pairs, key.encode()) or 0)
