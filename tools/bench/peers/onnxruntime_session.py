"""onnxruntime on CPUs: a model under each of its settings, and the bytes in use in its arena.

Its Python package does not tell the bytes, its C interface does (`AllocatorGetStats`, since 1.23).
The interface is a table of functions to which releases only append, so positions stay; they are
those of ``OrtApi`` in onnxruntime_c_api.h. In use are whole chunks: the arena grows in powers of
two and splits a chunk only if that leaves much (bfc_arena.cc), so that the figure may be up to
twice what tensors need.
"""

import ctypes
from collections.abc import Mapping, Sequence
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
# One thread has no worker that could spin.
_ALONE = {"one thread": {}}


def settings(model: bytes, inputs: Sequence[np.ndarray], threads: int) -> Named:
    """Yield sessions with and without spinning workers, each called in both ways of its API.

    Raises ModuleNotFoundError.
    """
    for name, entries in (_SPINNING if threads > 1 else _ALONE).items():
        session, feeds = open_session(model, inputs, threads, entries)
        run = partial(session.run, None, feeds)
        yield f"run, {name}", PreparedWorkload(run, run)
        binding = session.io_binding()
        for entry, array in feeds.items():
            binding.bind_cpu_input(entry, array)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        bound = partial(session.run_with_iobinding, binding)
        yield f"io binding, {name}", PreparedWorkload(bound, partial(_copied, bound, binding))


def _copied(run: Any, binding: Any) -> list[np.ndarray]:
    run()
    return binding.copy_outputs_to_cpu()


def open_session(
    model: bytes | Path,
    inputs: Sequence[Any],
    threads: int = 0,
    entries: Mapping[str, str] | None = None,
    optimized: bool = True,
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return a session, and the arrays by its inputs' names. Raises ModuleNotFoundError."""
    import onnxruntime as ort  # pyright: ignore[reportMissingImports]

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session, dict(zip(names, inputs, strict=True))


def run_unoptimized(model: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a model in its own types, without optimizations."""
    session, feeds = open_session(model, inputs, optimized=False)
    return session.run(None, feeds)


# The first version whose table has all that is used here.
_VERSION = 23
_POSITIONS = {
    "GetErrorMessage": 2, "CreateEnv": 3, "CreateSession": 7, "Run": 9, "CreateSessionOptions": 10,
    "SetIntraOpNumThreads": 24, "CreateTensorWithDataAsOrtValue": 49, "CreateCpuMemoryInfo": 69,
    "ReleaseValue": 96, "CreateAllocator": 131, "GetKeyValue": 297, "AllocatorGetStats": 319,
}  # fmt: skip
_WARNINGS, _DEVICE_ALLOCATOR, _DEFAULT_MEMORY = 2, 0, 0
# The first run allocates buffer by buffer, later ones a block of the size that it saw.
_RUNS = 2


class _Interface:
    """The table of functions of one library.

    Only results are released: what else is made lasts as long as the process, which is a peer's.
    """

    def __init__(self, library: Path) -> None:
        base = ctypes.CDLL(str(library)).OrtGetApiBase
        base.restype = POINTER(c_void_p * 2)
        get = ctypes.CFUNCTYPE(c_void_p, c_uint32)(base().contents[0] or 0)
        self._table = ctypes.cast(get(_VERSION), POINTER(c_void_p))

    def function(self, name: str, result: Any) -> Any:
        """Return the function of that name; arguments are converted as ctypes does."""
        return ctypes.CFUNCTYPE(result)(self._table[_POSITIONS[name]] or 0)

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


def peak_bytes(model: Path, inputs: Sequence[np.ndarray], threads: int) -> int:
    """Return the most bytes that two runs had in use above the session's before them.

    Results are among them, inputs and weights are not. Raises ModuleNotFoundError without
    onnxruntime, and PycError (RUNTIME_FAILED) for a model that it refuses.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]
    from onnx.helper import np_dtype_to_tensor_dtype

    known, feeds = open_session(model, inputs, optimized=False)
    (library,) = (Path(str(onnxruntime.__file__)).parent / "capi").glob("libonnxruntime.so*")
    api = _Interface(library)
    environment = api.made("CreateEnv", c_int(_WARNINGS), b"pyc-bench")
    options = api.made("CreateSessionOptions")
    api.call("SetIntraOpNumThreads", options, c_int(threads))
    session = api.made("CreateSession", environment, str(model).encode(), options)
    place = c_int(_DEVICE_ALLOCATOR), c_int(_DEFAULT_MEMORY)
    info = api.made("CreateCpuMemoryInfo", *place)
    arena = api.made("CreateAllocator", session, info)

    def in_use(key: str) -> int:
        pairs = api.made("AllocatorGetStats", arena)
        return int(api.function("GetKeyValue", c_char_p)(pairs, key.encode()) or 0)

    def value(array: np.ndarray) -> int | None:
        """Return the array as onnxruntime's value, without a copy."""
        shape = (c_int64 * array.ndim)(*array.shape)
        # onnxruntime numbers element types as ONNX does.
        element = c_int(np_dtype_to_tensor_dtype(array.dtype))
        data = c_void_p(array.ctypes.data), c_size_t(array.nbytes), shape, c_size_t(array.ndim)
        return api.made("CreateTensorWithDataAsOrtValue", info, *data, element).value

    results = [output.name for output in known.get_outputs()]
    given = (c_void_p * len(feeds))(*map(value, feeds.values())), c_size_t(len(feeds))
    before = in_use("InUse")
    for _ in range(_RUNS):
        made = (c_void_p * len(results))()
        wanted = _texts(results), c_size_t(len(results))
        api.call("Run", session, c_void_p(), _texts(list(feeds)), *given, *wanted, made)
        for pointer in made:
            api.function("ReleaseValue", None)(c_void_p(pointer))
    return in_use("MaxInUse") - before


def _texts(names: Sequence[str]) -> Any:
    return (c_char_p * len(names))(*(name.encode() for name in names))
