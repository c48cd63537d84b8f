"""The arguments of `pyc-run --input`, as arrays in the order of the program's inputs.

x.npy                        one array
inputs.npz                   arrays by the names of inputs, or all inputs in their order
2x3xf32=1.5                  one value for all elements; 2x3xf32=1 2 3 4 5 6 gives each one
2x3xf32=@seed:7              random numbers: floats from N(0, 1), integers 0 to 9, booleans
2x3xf32                      zeros
NAME=...                     any of these, for the input NAME

Without any --input a program of known sizes is called with random numbers.
"""

import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pyc_mlir.artifact.signature import Ranges, Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import BOOL, DTYPES, dtype_name, is_float
from pyc_mlir.dialects.util.files import file_error, open_plain

_SPEC = re.compile(rf"((?:\d+x)*)({'|'.join(DTYPES)})(?:=(.*))?$", re.S)
_SEED = re.compile(r"@seed:(\d+)$")
_RANDOM_INTEGERS = 10
# What an .npz file may unpack to: so many bytes, or so many times its own.
_UNPACKED_BYTES, _UNPACKED_TIMES = 1 << 30, 100
# What numpy and zipfile raise for files that are none of theirs, or that claim more than there is.
_NO_ARRAYS = (
    *(ValueError, EOFError, MemoryError, OverflowError, RuntimeError, LookupError),
    zlib.error,
    *(
        zipfile.BadZipFile,
        NotImplementedError,
        struct.error,
        SyntaxError,
        tokenize.TokenError,
        TypeError,
    ),
)


def read_inputs(
    texts: Sequence[str],
    inputs: Sequence[SignatureEntry],
    defaults: Sequence[np.ndarray] | None = None,
    ranges: Ranges | None = None,
) -> list[np.ndarray]:
    """Read one array per input; `defaults` are those of inputs that are not named.

    Raises PycError: ARGUMENT_COUNT when inputs are missing or too many, BAD_ARGUMENT for text and
    files that give no array. Whether an array fits its input is the program's to check.
    """
    by_name = {a.name: a for a in inputs}
    found: dict[str, np.ndarray] = {}
    unnamed: list[np.ndarray] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name in by_name:
            _add(found, name, _value(value))
        elif text.endswith(".npz"):
            _add_archive(found, unnamed, Path(text), by_name)
        else:
            is_value = _SPEC.match(value) is not None or value.endswith(".npy")
            if is_value and _SPEC.match(name) is None:
                there = ", ".join(f"`{n}`" for n in by_name) or "none"
                raise _bad(
                    f"--input {name}", f"the name of an input ({there})", f"no input `{name}`"
                )
            unnamed.append(_value(text))
    left = [a.name for a in inputs if a.name not in found]
    if defaults is not None and not unnamed:
        found = {a.name: d for a, d in zip(inputs, defaults, strict=True)} | found
        left = []
    if len(left) != len(unnamed):
        raise _wrong_count(inputs, len(found) + len(unnamed), ranges)
    found.update(zip(left, unnamed, strict=True))
    return [_as_declared(found[a.name], a) for a in inputs]


def seeded_inputs(
    inputs: Sequence[SignatureEntry], sizes: Mapping[str, int], seed: int
) -> list[np.ndarray]:
    """Draw one array per input as `@seed:N` does, N counted up from `seed`.

    Raises PycError (BAD_ARGUMENT) for a dynamic dimension that `sizes` does not have.
    """
    names = dict.fromkeys(name for a in inputs for name in a.dynamic.values())
    if missing := [name for name in names if name not in sizes]:
        other = ", ".join(name for name in sizes if name not in names)
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"inputs: expected a size for each dynamic dimension, got none for {', '.join(missing)}"
            f"{other and f', but for {other}'}; give it with `--dim {'=N --dim '.join(missing)}=N`",
        )
    arrays = []
    for number, argument in enumerate(inputs):
        known = {axis: sizes[name] for axis, name in argument.dynamic.items()}
        shape = (d if isinstance(d, int) else known[i] for i, d in enumerate(argument.shape))
        arrays.append(_random(tuple(shape), argument.dtype, seed + number))
    return arrays


def inputs_or_drawn(texts: Sequence[str], signature: Signature) -> tuple[list[np.ndarray], str]:
    """Read the inputs, or without `texts` draw those of known sizes; the flags that repeat that.

    Raises PycError as `read_inputs`.
    """
    inputs = signature.inputs
    if texts or not inputs or any(a.static_shape is None for a in inputs):
        return read_inputs(texts, inputs, ranges=signature.ranges), ""
    seeds = (f"--input {a.name}={example(a)}=@seed:{n}" for n, a in enumerate(inputs))
    return seeded_inputs(inputs, {}, 0), " ".join(seeds)


def example(argument: SignatureEntry, ranges: Ranges | None = None) -> str:
    """``1x784xf32``: an argument's type with 1, or the next legal size, for dynamic dimensions."""
    dims = [str(d) for d in argument.shape]
    for axis, name in argument.dynamic.items():
        low, high = (ranges or {}).get(name, (1, 1))
        dims[axis] = str(min(max(1, low), high))
    return "x".join([*dims, dtype_name(argument.dtype)])


def _add(found: dict[str, np.ndarray], name: str, array: np.ndarray) -> None:
    if name in found:
        raise _bad(f"--input {name}", "each input once", "a second array")
    found[name] = array


def _add_archive(
    found: dict[str, np.ndarray],
    unnamed: list[np.ndarray],
    path: Path,
    by_name: dict[str, SignatureEntry],
) -> None:
    """Add arrays by name; if no key is an input's name, all of them in their order."""
    arrays = _load(path)
    if not isinstance(arrays, dict):
        raise _bad(str(path), "an archive of arrays", "one array; name it .npy")
    if set(arrays).isdisjoint(by_name):
        unnamed.extend(arrays.values())
        return
    unknown = sorted(set(arrays) - set(by_name))
    if unknown:
        raise _bad(str(path), f"the inputs' names ({', '.join(by_name)})", f"`{unknown[0]}`")
    for name, array in arrays.items():
        _add(found, name, array)


def _value(text: str) -> np.ndarray:
    """Return the array that one argument stands for."""
    match = _SPEC.match(text)
    if match is not None:
        shape = tuple(int(d) for d in match[1].split("x") if d)
        return _filled(shape, DTYPES[match[2]], match[3] or "0", text)
    if text.endswith(".npy"):
        array = _load(Path(text))
        if not isinstance(array, np.ndarray):
            raise _bad(text, "one array", "an archive of arrays; name it .npz")
        return array
    raise _bad(
        f"--input {text}",
        "[NAME=]FILE.npy, FILE.npz or [NAME=]SHAPE[=VALUES], such as 2x3xf32=1.5 or "
        f"2x3xf32=@seed:0 (element types, in bits: {', '.join(DTYPES)})",
        "none of them",
    )


def _filled(shape: tuple[int, ...], dtype: np.dtype, text: str, where: str) -> np.ndarray:
    """Make an array of `shape` from ``@seed:N``, one value, or all values in row-major order."""
    seed = _SEED.match(text)
    if seed is not None:
        return _random(shape, dtype, int(seed[1]))
    if text.startswith("@"):
        raise _bad(where, "@seed:N with a whole number N", repr(text))
    words = re.split(r"[\s,\[\]]+", text.strip(" \t\n,[]"))
    count = int(np.prod(shape, dtype=np.int64))
    if len(words) not in (1, count):
        raise _bad(f"--input {where}", f"1 or {count} values", f"{len(words)}")
    try:
        # Through float64 (or int): numpy does not parse every element type from text.
        parsed = [float(w) if is_float(dtype) else int(w) for w in words]
        values = np.array(parsed).astype(dtype) if is_float(dtype) else np.array(parsed, dtype)
    except (ValueError, OverflowError) as error:
        raise _bad(f"--input {where}", f"values of {dtype_name(dtype)}", str(error)) from None
    return np.full(shape, values[0]) if len(words) == 1 else values.reshape(shape)


def _random(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if is_float(dtype):
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    high = 2 if dtype == BOOL else _RANDOM_INTEGERS
    return np.asarray(rng.integers(0, high, shape)).astype(dtype)


def _load(path: Path) -> np.ndarray | dict[str, np.ndarray]:
    """Read the array of an .npy file, or the arrays of an .npz file by name."""
    try:
        open_plain(path).close()  # numpy and zipfile would wait for a pipe
        if zipfile.is_zipfile(path):
            return _load_archive(path)
        # Mapped, the declared data must be in the file; else it would be allocated first.
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise file_error(error, "arrays as numpy saves them", path) from None
    except _NO_ARRAYS as error:
        raise _bad(str(path), "arrays as numpy saves them", str(error)) from None


def _load_archive(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file. Raises ValueError for one that unpacks to far more."""
    with zipfile.ZipFile(path) as archive:
        whole = sum(entry.file_size for entry in archive.infolist())
    most = max(_UNPACKED_BYTES, _UNPACKED_TIMES * path.stat().st_size)
    if whole > most:
        raise ValueError(f"{whole} bytes in {path.stat().st_size}: store them as `np.savez` does")
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def _as_declared(array: np.ndarray, argument: SignatureEntry) -> np.ndarray:
    """numpy saves bf16 as two raw bytes an element: they are bf16 again where that is wanted."""
    is_raw = array.dtype.kind == "V" and array.dtype.itemsize == argument.dtype.itemsize
    return array.view(argument.dtype) if is_raw else array


def _wrong_count(inputs: Sequence[SignatureEntry], given: int, ranges: Ranges | None) -> PycError:
    wanted = ", ".join(f"{a.name}: {a}" for a in inputs)
    return PycError(
        ReasonCode.ARGUMENT_COUNT,
        f"--input: expected {len(inputs)} array(s) ({wanted}), got {given}; for random ones: "
        + " ".join(f"--input {a.name}={example(a, ranges)}=@seed:0" for a in inputs),
    )


def _bad(where: str, expected: str, got: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"{where}: expected {expected}, got {got}")
