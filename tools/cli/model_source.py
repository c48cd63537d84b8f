"""The MODEL argument of `pyc-compile`, and the shapes given for its inputs.

A model is a file that the compiler reads, ``-`` for MLIR text on standard input, or
``file.py:function``, a Python function to trace. Shapes are ``[NAME=]2x?x784[xf32]``.
"""

import functools
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pyc_mlir.artifact.signature import Dim, Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.frontends.python.specs import TensorSpec, annotated_specs
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.frontends.sources import Function, MlirText, Source

_FUNCTION = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[A-Za-z_][\w.]*)?)?$")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# How a model's inputs may differ from recorded ones.
_OTHER_INPUTS = (
    ReasonCode.ARGUMENT_COUNT,
    ReasonCode.ARGUMENT_DTYPE,
    ReasonCode.ARGUMENT_SHAPE,
    ReasonCode.BAD_ARGUMENT,
)
# Traced arrays answer misuse as numpy's do: with Python's own exceptions.
_SPEAKS_AS_NUMPY = "pyc_mlir.frontends.python.tracer"


@dataclass(frozen=True)
class InputShape:
    """The user's description of one input; None: not given (or, for a dimension, dynamic)."""

    name: str | None
    dims: tuple[int | None, ...]
    dtype: np.dtype | None

    @staticmethod
    def parse(text: str) -> "InputShape":
        """Read ``[NAME=]SHAPE``. Raises PycError (BAD_ARGUMENT)."""
        name, equals, shape = text.rpartition("=")
        words = [] if shape == "scalar" else shape.split("x")
        dtype = DTYPES.get(words[-1]) if words else None
        sizes = words if dtype is None else words[:-1]
        legal = shape and all(w == "?" or (w.isascii() and w.isdigit()) for w in sizes)
        if not legal or (equals and not name):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"--input {text}: expected [NAME=]SHAPE with sizes or ? joined by x and, if "
                f"wanted, an element type in {', '.join(DTYPES)} (bits), such as 2x784, "
                "x=?x784xf32 or scalar",
            )
        dims = tuple(None if w == "?" else int(w) for w in sizes)
        return InputShape(name or None, dims, dtype)


def read_model(
    text: str,
    stdin: BinaryIO,
    islands: bool = False,
    function: str = "",
    outputs: Sequence[str] = (),
) -> Source:
    """Return the source that MODEL stands for.

    islands, function, outputs: as of `Source.of`.

    Raises PycError: BAD_MODEL for Python files without such a function and for input that is no
    text, and as `Source.of`.
    """
    if text == "-":
        return Source.of(MlirText(_read_text(stdin)), False, function, outputs)
    match = _FUNCTION.match(text)
    if match is None:
        return Source.of(Path(text), islands, function, outputs)
    made = load_function(Path(match["file"]), match["name"] or "")
    return Source.of(made, False, function, outputs)


def _read_text(stdin: BinaryIO) -> str:
    try:
        return stdin.read().decode() + "\n"
    except UnicodeDecodeError as error:
        raise PycError(
            ReasonCode.BAD_MODEL, f"<stdin>: expected MLIR text in UTF-8, got {error}"
        ) from None


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """Return the function `name` of a Python file, which is imported as `python` would run it.

    Raises PycError (FILE_ACCESS, BAD_MODEL); an error of the function while it is traced becomes
    UNTRACEABLE, with its place.
    """
    read_file(path, "a Python file")
    module = import_file(path)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        own = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"{path}: expected FILE.py:FUNCTION with one of its functions "
            f"({', '.join(own) or 'it has none'}), got {name!r}",
        )
    return _with_code(found, ReasonCode.UNTRACEABLE, f"`{name}` to run on traced arrays")


def import_file(path: Path) -> Any:
    """Return the module of a Python file. Raises PycError (FILE_ACCESS, BAD_MODEL)."""
    read_file(path, "a Python file")
    # Not the file's own name, which may be that of a package.
    name = f"pyc_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import would, for what looks itself up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        _with_code(spec.loader.exec_module, ReasonCode.BAD_MODEL, "a file to import")(module)
    finally:
        sys.path.pop(0)
    return module


def _with_code(function: Callable[..., Any], code: ReasonCode, expected: str) -> Callable[..., Any]:
    """Wrap `function`: errors of the user's code become PycError, our own faults pass."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except PycError:
            raise
        except Exception as error:
            place = _user_place(error)
            if place is None:
                raise
            got = f"{type(error).__name__}: {error}"
            raise PycError(code, f"{place}: expected {expected}, got {got}") from None

    return call


def _user_place(error: Exception) -> str | None:
    """Return file and line of the user's code that `error` comes from; None for our code."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = [
        (frame.f_globals.get("__name__", ""), f"{frame.f_code.co_filename}:{line}")
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith("<")
    ]
    raised_in = frames[-1][0]
    if raised_in.startswith("pyc_mlir.") and raised_in != _SPEAKS_AS_NUMPY:
        return None
    return next(p for name, p in reversed(frames) if not name.startswith(("pyc_mlir.", "numpy.")))


def with_shapes(source: Source, shapes: Sequence[InputShape]) -> tuple[Source, list[Any] | None]:
    """Return the source and the inputs of a job with the given `shapes`.

    Raises PycError: ARGUMENT_COUNT and BAD_ARGUMENT for inputs that the model does not have,
    ARGUMENT_SHAPE, ARGUMENT_DTYPE and DIMENSION_MISMATCH for shapes that do not fit it.
    """
    if isinstance(source, Function):
        return source, _specs(source.function, shapes)
    if not shapes:
        return source, None
    with new_context() as context, ir.Location.unknown():
        loaded = source.load(None, context)
    if loaded.module is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--input: expected a model that PyC imports, got {loaded.name}, which is "
            "compiled by IREE with the shapes of the file; change them there",
        )
    with loaded.module.context:
        inputs = signature_of(entry_function(loaded.module)).inputs
    merged = refine(inputs, assign([a.name for a in inputs], shapes))
    return loaded, [tuple(d if isinstance(d, int) else None for d in a.shape) for a in merged]


def with_shapes_of(
    source: Source, recorded: Signature | None, shapes: Sequence[InputShape]
) -> tuple[Source, list[Any] | None]:
    """Do as `with_shapes`, by a recorded signature where no `shapes` are given.

    The model's own declarations stay, so that it is compiled as it was.

    Raises PycError: REPLAY_MISMATCH for a model that does not take the recorded inputs.
    """
    if shapes or recorded is None:
        return with_shapes(source, shapes)
    try:
        return _as_recorded(source, recorded)
    except PycError as error:
        if error.code not in _OTHER_INPUTS:
            raise
        raise PycError(
            ReasonCode.REPLAY_MISMATCH,
            f"replay: expected a model that takes the recorded inputs, got another one "
            f"({error.message}); replay the model that the log was written for",
        ) from None


def _as_recorded(source: Source, recorded: Signature) -> tuple[Source, list[Any] | None]:
    given = [
        InputShape(a.name, tuple(d if isinstance(d, int) else None for d in a.shape), a.dtype)
        for a in recorded.inputs
    ]
    if isinstance(source, Function):
        return source, _specs(source.function, given)
    if source.is_bytecode:
        # Only a worker reads it, and what enters at IREE takes no shapes.
        return source, None
    with new_context() as context, ir.Location.unknown():
        loaded = source.load(None, context)
    if loaded.module is None:
        return loaded, None
    with loaded.module.context:
        declared = signature_of(entry_function(loaded.module)).inputs
    same = [a.shape for a in declared] == [a.shape for a in recorded.inputs]
    return with_shapes(loaded, () if same else given)


def _specs(function: Callable[..., Any], shapes: Sequence[InputShape]) -> list[Any]:
    """Return the positional arguments of a trace: specs from annotations and shapes."""
    parameters = [p for p in inspect.signature(function).parameters.values()]
    names = [p.name for p in parameters if p.kind in _POSITIONAL]
    annotated = annotated_specs(function)
    assigned = assign(names, shapes)
    known = []
    for name in names:
        declared, given = annotated.get(name), assigned[name]
        if declared is not None:
            known.append(SignatureEntry(name, declared.dtype, declared.dims))
        elif given is not None:
            known.append(_from_text(name, given))
    merged = {a.name: TensorSpec(a.dtype, *a.shape) for a in refine(known, assigned)}
    specs: list[Any] = []
    for parameter in parameters:
        if parameter.name in merged:
            specs.append(merged[parameter.name])
        elif parameter.name in names and parameter.default is not inspect.Parameter.empty:
            specs.append(parameter.default)
        else:
            break  # the tracer reports what is missing
    return specs


def _from_text(name: str, given: InputShape) -> SignatureEntry:
    if given.dtype is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--input {name}: expected an element type too, as the function does not annotate "
            f"it, such as {name}={'x'.join(_dims_text(given.dims))}xf32",
        )
    return SignatureEntry(name, given.dtype, given.dims)


def _dims_text(dims: Sequence[Dim]) -> list[str]:
    return ["?" if d is None else str(d) for d in dims]


def assign(names: Sequence[str], shapes: Sequence[InputShape]) -> dict[str, InputShape | None]:
    """Assign shapes to inputs: named ones first, the others fill the inputs left, in order."""
    found: dict[str, InputShape | None] = {}
    for shape in shapes:
        if shape.name is None:
            continue
        if shape.name not in names or shape.name in found:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"--input {shape.name}: expected each input once ({_list(names)}), got "
                f"{'a second shape' if shape.name in found else 'a name that is none of them'}",
            )
        found[shape.name] = shape
    left = [name for name in names if name not in found]
    unnamed = [shape for shape in shapes if shape.name is None]
    if len(unnamed) > len(left):
        raise PycError(
            ReasonCode.ARGUMENT_COUNT,
            f"--input: expected at most {len(names)} shapes ({_list(names)}), got {len(shapes)}",
        )
    found.update(zip(left, unnamed, strict=False))
    return {name: found.get(name) for name in names}


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "the model has no inputs"


def refine(
    declared: Sequence[SignatureEntry], given: Mapping[str, InputShape | None]
) -> list[SignatureEntry]:
    """Return the arguments with the sizes given; a named dimension has its size everywhere."""
    sizes: dict[str, int] = {}
    merged = [_merge(argument, given[argument.name], sizes) for argument in declared]
    return [
        replace(a, shape=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in a.shape))
        for a in merged
    ]


def _merge(
    declared: SignatureEntry, given: InputShape | None, sizes: dict[str, int]
) -> SignatureEntry:
    """Return `declared` with sizes for dynamic dimensions; those of named ones go to `sizes`."""
    if given is None:
        return declared
    if given.dtype is not None and given.dtype != declared.dtype:
        raise PycError(
            ReasonCode.ARGUMENT_DTYPE,
            f"--input {declared.name}: expected {dtype_name(declared.dtype)} as in the model, "
            f"got {dtype_name(given.dtype)}",
        )
    if not _fits(given.dims, declared.shape):
        raise PycError(
            ReasonCode.ARGUMENT_SHAPE,
            f"--input {declared.name}: expected a shape within {declared}, "
            f"got {'x'.join(_dims_text(given.dims)) or 'scalar'}",
        )
    pairs = list(zip(given.dims, declared.shape, strict=True))
    for new, old in pairs:
        if isinstance(old, str) and new is not None and sizes.setdefault(old, new) != new:
            raise PycError(
                ReasonCode.DIMENSION_MISMATCH,
                f"--input {declared.name}: expected {sizes[old]} for dimension `{old}` as "
                f"before, got {new}",
            )
    return replace(declared, shape=tuple(old if new is None else new for new, old in pairs))


def _fits(dims: Sequence[int | None], declared: Sequence[Dim]) -> bool:
    return len(dims) == len(declared) and all(
        new is None or not isinstance(old, int) or new == old
        for new, old in zip(dims, declared, strict=True)
    )
