"""The weights of an ONNX model apart from its graph: bytes and place of each tensor.

onnx checks, converts and infers copies of a model, of at most two gigabytes. So `split_weights`
takes large initializers and those in other files out of it: they are inputs of the graph that onnx
sees, and `ModelWeights` reads them on demand. All of them must have as many bytes as their
types say, which is found out before any is read.

A model names files and places in them, and who wrote the model chose the names. `inside` finds the
file that a name leads to, only within the model's own folder; `check_parts` looks at all parts
before any is read, and `read_part` opens a file without following links, so that one that is put
there meanwhile leads nowhere.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import prod
from pathlib import Path

import numpy as np
import onnx

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.types import MAX_BYTES
from pyc_mlir.frontends.onnx.reading import tensors_of

# How often the bytes of a model's files may be used, all in all. Weights that are stored once for
# several tensors are tied ones; without a bound, a megabyte could stand for a terabyte.
MAX_USES = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe that takes a file's place must not be waited for.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class FileRange:
    """`length` bytes from `offset` of a file, whose path (of `inside`) is free of links."""

    path: Path
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.length


class MissingFile(ValueError):
    """A file that a model names, which could lie beside it, does not exist."""


def inside(folder: Path, name: str) -> Path:
    """Return the file that `name` leads to from `folder` (which is free of links), links followed.

    Raises ValueError unless that is a plain file in the folder, or in one in it; MissingFile where
    it could be one.
    """
    absent = False
    try:
        path = (folder / name).resolve()
        within = bool(name) and path.is_relative_to(folder)
        legal = within and path.is_file()
        absent = within and path.parent.is_dir() and not os.path.lexists(path)
    # A loop of links is a RuntimeError up to Python 3.12.
    except (OSError, RuntimeError, ValueError):
        legal = False
    if absent:
        raise MissingFile(f"expected a file inside the model's directory, got no {name!r:.200}")
    if not legal:
        raise ValueError(f"expected a file inside the model's directory, got {name!r:.200}")
    return path


def check_parts(parts: Sequence[FileRange]) -> None:
    """Raise ValueError unless all lie within their files, and overlap only where they are equal.

    No more is read of the files than their sizes. Raises OSError.
    """
    total = stored = 0
    ordered = sorted(parts, key=lambda part: (part.path, part.offset, part.length))
    for path, group in groupby(ordered, key=lambda part: part.path):
        within = [part for part in group if part.length]
        size = os.stat(path, follow_symlinks=False).st_size
        total, stored = total + sum(p.length for p in within), stored + size
        for part in within:
            if part.end > size:
                raise ValueError(
                    f"expected {part.length} bytes from {part.offset} of {path.name}, which has "
                    f"{size} bytes"
                )
        for one, other in pairwise(dict.fromkeys(within)):
            if one.end > other.offset:
                raise ValueError(
                    f"expected parts of {path.name} that are equal or apart, got bytes "
                    f"{one.offset} to {one.end} and {other.offset} to {other.end}"
                )
    if total > MAX_USES * stored:
        raise ValueError(
            f"expected weights of at most {MAX_USES} times the {stored} bytes in the model's "
            f"files, got {total} bytes"
        )


def read_part(folder: Path | None, part: FileRange, out: np.ndarray) -> None:
    """Read a part of a file into an array of as many bytes.

    Raises OSError, and ValueError for what is no plain file any more, or too short.
    """
    assert folder is not None, "parts have a folder"
    descriptor = _opened(folder, part.path)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"expected a plain file, got {part.path.name}")
        file.seek(part.offset)
        rest = out.reshape(-1).view(np.uint8).data if out.size else memoryview(b"")
        while rest:
            count = file.readinto(rest)
            if not count:
                raise ValueError(f"expected {part.length} bytes of {part.path.name}, got fewer")
            rest = rest[count:]


def _opened(folder: Path, path: Path) -> int:
    """Open the file, each folder on the way by its own name. Raises OSError."""
    *folders, name = path.relative_to(folder).parts
    here = os.open(folder, _FOLDER)
    try:
        for part in folders:
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name, _FILE, dir_fd=here)
    finally:
        os.close(here)


# Larger initializers do not affect shapes: onnx's checks omit them.
_SHAPE_BYTES = 1024
# Of tensors in other files that are attributes of nodes, which onnx sees; such are small constants.
_MAX_ATTRIBUTE_BYTES = 1 << 28
_BITS = {
    getattr(onnx.TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(onnx.TensorProto, name)
}
_DIGITS = 18


@dataclass(frozen=True)
class ModelWeights:
    """Initializers by name: those in the model's own file, and those in files beside it."""

    inner: Mapping[str, onnx.TensorProto]
    outer: Mapping[str, tuple[onnx.TensorProto, FileRange]]
    folder: Path | None

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each weight. Raises ValueError or TypeError for unreadable ones, and OSError."""
        for name, tensor in self.inner.items():
            yield name, onnx.numpy_helper.to_array(tensor)
        for name, (tensor, part) in self.outer.items():
            if tensor.data_type in _BITS:
                yield name, onnx.numpy_helper.to_array(_filled(tensor, part, self.folder))
                continue
            array = np.empty(tuple(tensor.dims), _dtype(tensor))
            read_part(self.folder, part, array)
            yield name, array


def split_weights(
    model: onnx.ModelProto, folder: Path | None
) -> tuple[onnx.ModelProto, ModelWeights]:
    """Return a copy without large initializers, and these. `folder` is the model's, free of links.

    Raises ValueError for tensors whose bytes do not match their type, or outside of the folder, and
    OSError.
    """
    inner: dict[str, onnx.TensorProto] = {}
    outer: dict[str, tuple[onnx.TensorProto, FileRange]] = {}
    small: list[onnx.TensorProto] = []
    for tensor in model.graph.initializer:
        nbytes = _nbytes(tensor)
        if is_external(tensor):
            outer[tensor.name] = tensor, _part(tensor, nbytes, folder)
        elif tensor.ByteSize() <= _SHAPE_BYTES:
            small.append(tensor)
        else:
            # Raw data of another size; typed data is checked when it is read.
            if tensor.HasField("raw_data") and len(tensor.raw_data) != nbytes:
                raise _wrong(tensor, f"{nbytes} bytes", str(len(tensor.raw_data)))
            inner[tensor.name] = tensor
    if len(small) + len(inner) + len(outer) > len({t.name for t in model.graph.initializer}):
        raise ValueError("expected initializers of different names, got one twice")
    light = _without_weights(model, small, [*inner.values(), *(t for t, _ in outer.values())])
    attributes = [(t, _part(t, _nbytes(t), folder)) for t in tensors_of(light) if is_external(t)]
    check_parts([part for _, part in (*outer.values(), *attributes)])
    _read_attributes(attributes, folder)
    return light, ModelWeights(inner, outer, folder)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Return True for a tensor whose data lies in another file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def unread_weights(name: str, error: OSError | MissingFile) -> PycError:
    """Return the error for weights whose file, beside the model, is missing or unreadable."""
    problem = str(error) if isinstance(error, MissingFile) else f"weights: {error}"
    remedy = "put that file, readable, where the exporter wrote it, beside the model"
    return PycError(
        ReasonCode.FILE_ACCESS, " ".join(problem.split()), where=one_line(name), remedy=remedy
    )


def external_files(model: onnx.ModelProto) -> list[str]:
    """Return the files beside a model, not yet read, that hold weights of it; sorted."""
    outside = (t for t in (*model.graph.initializer, *tensors_of(model)) if is_external(t))
    return sorted({e.value for t in outside for e in t.external_data if e.key == "location"})


def _without_weights(
    model: onnx.ModelProto, small: list[onnx.TensorProto], large: list[onnx.TensorProto]
) -> onnx.ModelProto:
    light = onnx.ModelProto(opset_import=model.opset_import, functions=model.functions)
    if model.HasField("ir_version"):
        light.ir_version = model.ir_version
    graph, original = light.graph, model.graph
    graph.name = original.name
    graph.node.extend(original.node)
    graph.input.extend(original.input)
    graph.output.extend(original.output)
    graph.initializer.extend(small)
    graph.sparse_initializer.extend(original.sparse_initializer)
    named = {i.name: i for i in graph.input}
    named |= {t.name: graph.input.add() for t in large if t.name not in named}
    for tensor in (*small, *large):
        info = named.get(tensor.name)
        # An input may leave the type to the initializer that is its default.
        if info is not None and not info.type.tensor_type.HasField("shape"):
            info.CopyFrom(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light


def _dtype(tensor: onnx.TensorProto) -> np.dtype:
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except KeyError:
        raise _wrong(tensor, "a known element type", str(tensor.data_type)) from None


def _nbytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of the elements, by the type. Raises ValueError for impossible sizes."""
    if tensor.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        if is_external(tensor):
            raise _wrong(tensor, "numbers in other files", "another element type")
        return 0
    bits = _BITS.get(tensor.data_type) or 8 * _dtype(tensor).itemsize
    legal = all(d >= 0 for d in tensor.dims)
    if not legal or prod(d or 1 for d in tensor.dims) * bits > 8 * MAX_BYTES:
        raise _wrong(tensor, "sizes that a memory holds", str(list(tensor.dims))[:200])
    return (prod(tensor.dims) * bits + 7) // 8


def _part(tensor: onnx.TensorProto, nbytes: int, folder: Path | None) -> FileRange:
    """Return the place of an external tensor's data. Raises ValueError."""
    fields = {e.key: e.value for e in tensor.external_data}
    location = fields.get("location", "")
    if folder is None:
        expected = f"the model by its path, as it is in the file {location!r:.200}"
        raise _wrong(tensor, expected, "the model alone; give the model by its path")
    try:
        path = inside(folder, location)
        offset, length = (_number(fields.get(k, d)) for k, d in (("offset", "0"), ("length", "")))
    except ValueError as error:
        kind = MissingFile if isinstance(error, MissingFile) else ValueError
        raise kind(f"weights `{tensor.name}`: {error}") from None
    if length not in (None, nbytes):
        raise _wrong(tensor, f"{nbytes} bytes, as its type has", f"{length}")
    return FileRange(path, offset or 0, nbytes)


def _number(text: str) -> int | None:
    """Return a count of bytes, None for an empty text. Raises ValueError."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ValueError(f"expected a number of bytes, got {text[:80]!r}")
    return int(text)


def _read_attributes(found: list[tuple[onnx.TensorProto, FileRange]], folder: Path | None) -> None:
    if sum(part.length for _, part in found) > _MAX_ATTRIBUTE_BYTES:
        raise ValueError(
            f"expected at most {_MAX_ATTRIBUTE_BYTES} bytes of constants in other files; store "
            "weights as initializers"
        )
    for tensor, part in found:
        tensor.CopyFrom(_filled(tensor, part, folder))


def _filled(tensor: onnx.TensorProto, part: FileRange, folder: Path | None) -> onnx.TensorProto:
    """Return a tensor with the data of its file."""
    raw = np.empty(part.length, np.uint8)
    read_part(folder, part, raw)
    return onnx.TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw.tobytes()
    )


def _wrong(tensor: onnx.TensorProto, expected: str, got: str) -> ValueError:
    return ValueError(f"weights `{tensor.name}`: expected {expected}, got {got}")
