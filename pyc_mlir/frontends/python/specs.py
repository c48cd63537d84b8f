"""Argument specs of traced functions: an element type and a shape with named dimensions.

Three ways to say the same, for signatures and for calls:

    TensorSpec("f32", "batch", 784)             # as an argument of `trace`
    x: Tensor["f32", "batch", 784]              # as an annotation
    spec(np.float32, ("batch", 784))            # from numpy's own words

Element types go by MLIR's names, whose numbers count bits ("i8" has one byte), numpy's full names
("float32"), its scalar types or dtypes. Among dimensions, a string names a dynamic one (equal names
must agree at run time), None leaves one unnamed.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, TensorType, dtype_name, require_plain
from pyc_mlir.frontends.python.source import user_point

Entry = int | str | None
# numpy's codes of types: a letter, perhaps a byte order and a number of bytes.
_CODE = re.compile(r"[<>=|]?[A-Za-z?]\d*")


def supported_dtype(dtype: Any, where: str) -> np.dtype:
    """Return the numpy dtype of an MLIR name ("f32"), numpy's name ("float32"), a dtype or a type.

    Raises PycError (UNSUPPORTED_DTYPE) for types that PyC does not have, and for numpy's codes
    ("f4", "<i8", "d"), whose numbers count bytes where MLIR's count bits.
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if isinstance(dtype, str) and _CODE.fullmatch(dtype):
        raise PycError(
            ReasonCode.UNSUPPORTED_DTYPE,
            f"{where}: expected an element type in {', '.join(DTYPES)}, which count bits, got "
            f"numpy's code {dtype!r}, which counts bytes; {_in_bits(dtype)}",
        )
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = _of_another_library(dtype)
    if found is None or dtype_name(found) not in DTYPES:
        raise PycError(
            ReasonCode.UNSUPPORTED_DTYPE,
            f"{where}: expected an element type in {', '.join(DTYPES)}, got {dtype!r}; "
            "convert it with `.astype`",
        )
    return found


def _of_another_library(dtype: Any) -> np.dtype | None:
    """Return the dtype that a type such as ``torch.float32`` names; None if it names none."""
    name = str(dtype).rpartition(".")[2]
    return next((known for known in DTYPES.values() if known.name == name), None)


def _in_bits(code: str) -> str:
    """Return the advice on how to write a code of numpy in PyC's names."""
    try:
        meant = dtype_name(np.dtype(code))
    except TypeError:
        return "choose one of them"
    return f"write {meant!r}" if meant in DTYPES else "choose one of them"


class TensorSpec:
    """The type of an argument: ``TensorSpec("f32", "batch", 784)``. Immutable and hashable."""

    __slots__ = ("dims", "dtype")

    def __init__(self, dtype: Any, *dims: Entry) -> None:
        for dim in dims:
            named = dim is None or (isinstance(dim, str) and dim.isidentifier())
            sized = isinstance(dim, (int, np.integer)) and not isinstance(dim, bool) and dim >= 0
            if not (named or sized):
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"TensorSpec: expected dimensions that are sizes >= 0, names or None, "
                    f"got {dim!r}",
                )
        self.dtype = supported_dtype(dtype, "TensorSpec")
        self.dims: tuple[Entry, ...] = tuple(map(_entry, dims))

    @property
    def type(self) -> TensorType:
        """The tensor type, named and unnamed dynamic dimensions as None."""
        return TensorType(tuple(d if isinstance(d, int) else None for d in self.dims), self.dtype)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, TensorSpec)
        return same and (self.dtype, self.dims) == (other.dtype, other.dims)

    def __hash__(self) -> int:
        return hash((self.dtype, self.dims))

    def __repr__(self) -> str:
        parts = [repr(dtype_name(self.dtype)), *map(repr, self.dims)]
        return f"TensorSpec({', '.join(parts)})"


def _entry(dim: Entry | np.integer) -> Entry:
    return int(dim) if isinstance(dim, np.integer) else dim


class Tensor(Any):
    """Annotation of an array argument: ``Tensor["f32", "batch", 784]`` is a TensorSpec.

    Where a linter takes the names for Python's, write ``Annotated[np.ndarray, TensorSpec(...)]``.
    """

    def __class_getitem__(cls, items: Any) -> TensorSpec:
        return TensorSpec(*(items if isinstance(items, tuple) else (items,)))


def spec(dtype: Any, shape: Sequence[Entry] = ()) -> TensorSpec:
    """``spec(np.float32, ("batch", 784))``: a TensorSpec from a dtype and a shape."""
    return TensorSpec(dtype, *shape)


def spec_of(array: Any) -> TensorSpec:
    """Return the spec of an example: anything with `dtype` and `shape`, torch's tensors included.

    Raises PycError (BAD_ARGUMENT) for masked arrays and matrices, UNSUPPORTED_DTYPE.
    """
    require_plain(array, "argument")
    return TensorSpec(array.dtype, *array.shape)


def check_plain(tree: Any) -> None:
    """Check each array of a tree of operands.

    Raises PycError (BAD_ARGUMENT), naming the line, for masked arrays and matrices.
    """
    for _, value in leaves(tree):
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            require_plain(value, str(user_point()))


def is_array(value: Any) -> bool:
    """Return True for numpy arrays, numpy scalars and device arrays: by dtype and shape."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type)


def annotated_specs(function: Callable[..., Any]) -> dict[str, TensorSpec]:
    """Return the specs that a function's annotations give, by parameter name.

    Text that cannot be evaluated (names that exist for type checkers only) gives no spec.
    """
    try:
        hints = inspect.get_annotations(function, eval_str=True)
    except NameError:
        hints = inspect.get_annotations(function)
    found = {}
    for name, hint in hints.items():
        options = (hint, *getattr(hint, "__metadata__", ()))
        specs = [o for o in options if isinstance(o, TensorSpec)]
        if specs and name != "return":
            found[name] = specs[0]
    return found


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield each leaf with its path: dict keys and positions joined by dots, in order."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(tree, (tuple, list)):
        for i, value in enumerate(tree):
            yield from leaves(value, (*path, str(i)))
    else:
        yield ".".join(path), tree


def rebuild(tree: Any, values: Sequence[Any]) -> Any:
    """Return a tree like `tree` (named tuples included) with `values` as its leaves, in order."""
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with `function` applied to each leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        mapped = [map_leaves(function, value) for value in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else type(tree)(mapped)
    return function(tree)


def result_names(tree: Any) -> list[str]:
    """Name a function's results by the paths of their leaves; ``out`` if a path has no name.

    ``out`` for a single array, ``out0`` and ``out1`` for a pair, ``logits`` for a dict's entry.
    """
    names = [path for path, _ in leaves(tree)]
    return ["out" + name if not name or name[0].isdigit() else name for name in names]


def check_leaf(value: Any, allowed: Callable[[Any], bool], where: str, expected: str) -> None:
    """Raise PycError (BAD_ARGUMENT) for a leaf that is none of `expected`."""
    if not allowed(value):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{where}: expected {expected}, got {type(value).__name__} {value!r:.60}",
        )
