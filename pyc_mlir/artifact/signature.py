"""The signature of a program, and the check of a call's arguments against it.

IREE checks element types and static dimensions, but not that dynamic dimensions agree (it would
read out of bounds). A signature names dimensions: equal names must have equal sizes, one that is
named as a product of others (``2*d``) must have that size, and sizes of dimensions with a declared
range must lie in it. One without a name goes by its place, ``x[0]``.

Inputs that the front end took from a tree of tuples, lists and dicts are named by their paths,
``params.0.weight``: by these a call's trees are brought into the order of the inputs. Results have
a structure of their own:

    text = encode({"y": 0, "parts": [1, 2]})    # on the module's function and in the manifest
    filled(decode(text, 3), arrays)             # {"y": arrays[0], "parts": [arrays[1], arrays[2]]}
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, ClassVar

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.types import DTYPES, dtype_name, is_float
from pyc_mlir.dialects.util.codec import Form
from pyc_mlir.dialects.util.index_ranges import IndexRange, check_indices
from pyc_mlir.dialects.util.suggestions import did_you_mean

# Arguments of calls that are no arrays: numbers and trees.
PLAIN = (bool, int, float, list, tuple, dict)
_NUMBERS = (bool, int, float, np.generic)
# A size, the name of a dynamic dimension, or a dynamic dimension without a name.
Dim = int | str | None
# Name, element type and dimensions of an argument.
Described = tuple[str, np.dtype, tuple[Dim, ...]]
# Shape and element type of each argument of a call.
Given = Sequence[tuple[tuple[int, ...], np.dtype]]
# The attribute of a function that holds its declared ranges.
RANGES = "pyc.ranges"
# Sizes of dimensions are below it: programs count in 64 bits.
_SIZES = 1 << 63
# The smallest and the largest size of a dimension.
Range = tuple[int, int]
Ranges = Mapping[str, Range]
# The attribute of a function that holds the structure of its results.
RESULTS = "pyc.results"
_RESULT_KEYS = (str, int, float, bool, type(None))
_LIST, _TUPLE, _DICT = "list", "tuple", "dict"


@dataclass(frozen=True)
class SignatureEntry:
    """One input or output: its name, element type and dimensions.

    Names are printable, on one line, whatever a model or a manifest calls them.
    """

    name: str
    dtype: Annotated[np.dtype, Form(dtype_name, DTYPES.__getitem__)]
    shape: tuple[Dim, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name))
        dims = tuple(one_line(d) if isinstance(d, str) else d for d in self.shape)
        object.__setattr__(self, "shape", dims)

    def __str__(self) -> str:
        dims = "".join(f"{'?' if d is None else d}x" for d in self.shape)
        return f"tensor<{dims}{dtype_name(self.dtype)}>"

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when every dimension is known."""
        known = tuple(d for d in self.shape if isinstance(d, int))
        return known if len(known) == len(self.shape) else None

    @cached_property
    def dynamic(self) -> Mapping[int, str]:
        """By axis, what each dynamic dimension goes by."""
        named = enumerate(self.shape)
        return {i: d or f"{self.name}[{i}]" for i, d in named if not isinstance(d, int)}

    def settled(self, sizes: Mapping[str, int]) -> "SignatureEntry":
        """Return this argument with sizes in place of dynamic dimensions, as far as given.

        A dimension that is a product of others, ``2*d``, has the size of theirs.
        """
        shape = list(self.shape)
        for axis, name in self.dynamic.items():
            shape[axis] = _settled(name, shape[axis], sizes)
        return replace(self, shape=tuple(shape))

    def largest(self, ranges: Ranges) -> "SignatureEntry":
        """Return this argument with the largest size for each dynamic dimension of a range."""
        names = self.dynamic
        shape = [
            ranges[names[i]][1] if names.get(i) in ranges else d for i, d in enumerate(self.shape)
        ]
        return replace(self, shape=tuple(shape))


@dataclass(frozen=True)
class Signature:
    """The inputs and results of a program, and the `ranges` that sizes are declared to keep.

    results: the structure of the results, as `encode` writes it. indices: the ranges that indices
        in inputs keep.
    """

    complete: ClassVar[bool] = True
    inputs: tuple[SignatureEntry, ...]
    outputs: tuple[SignatureEntry, ...]
    ranges: Ranges = field(default_factory=dict)
    results: str = ""
    indices: tuple[IndexRange, ...] = ()

    @staticmethod
    def of(
        inputs: Sequence[Described],
        outputs: Sequence[Described],
        ranges: Mapping[str, Any],
        results: str = "",
        indices: tuple[IndexRange, ...] = (),
    ) -> "Signature":
        """Return the signature of described arguments. Raises as `with_ranges`."""
        entries, made = (tuple(SignatureEntry(*a) for a in found) for found in (inputs, outputs))
        return Signature(entries, made, results=results, indices=indices).with_ranges(ranges)

    @property
    def undeclared(self) -> list[tuple[str, str]]:
        """The dynamic dimensions of inputs without a range: (what it goes by, where it is)."""
        return [
            (name, f"axis {axis} of `{a.name}`")
            for a in self.inputs
            for axis, name in a.dynamic.items()
            if name not in self.ranges
        ]

    @property
    def largest_bytes(self) -> tuple[int | None, int | None]:
        """The bytes of all inputs and of all results at their largest; None without a bound."""

        def of(entries: Sequence[SignatureEntry]) -> int | None:
            largest = [a.largest(self.ranges) for a in entries]
            if None in [a.static_shape for a in largest]:
                return None
            return sum(a.dtype.itemsize * prod(a.static_shape or ()) for a in largest)

        return of(self.inputs), of(self.outputs)

    @property
    def ranges_of_inputs(self) -> dict[tuple[int, int], Range]:
        """The ranges by (input, axis)."""
        return self.places_of(self.ranges)

    def settled(self, sizes: Mapping[str, int]) -> "Signature":
        """Return this signature with sizes in place of dynamic dimensions of the inputs."""
        return replace(self, inputs=tuple(a.settled(sizes) for a in self.inputs))

    def places_of(self, ranges: Ranges) -> dict[tuple[int, int], Range]:
        """Return ranges by (input, axis); names that no input has are left out."""
        return {
            (number, axis): ranges[name]
            for number, a in enumerate(self.inputs)
            for axis, name in a.dynamic.items()
            if name in ranges
        }

    def refined(self, now: "Signature") -> "Signature":
        """Return this signature with sizes, ranges and indices of one that passes left."""

        def merge(old: SignatureEntry, new: SignatureEntry) -> SignatureEntry:
            pairs = zip(old.shape, new.shape, strict=True)
            shape = tuple(n if isinstance(n, int) else o for o, n in pairs)
            return SignatureEntry(old.name, new.dtype, shape)

        inputs = tuple(map(merge, self.inputs, now.inputs))
        outputs = tuple(map(merge, self.outputs, now.outputs))
        return Signature(inputs, outputs, now.ranges, self.results, now.indices)

    def with_ranges(self, given: Mapping[str, Any]) -> "Signature":
        """Return this signature with more ranges. Raises PycError (BAD_ARGUMENT) for others."""
        known = sorted({name for a in self.inputs for name in a.dynamic.values()})
        ranges = dict(self.ranges)
        for name, value in ((one_line(n), v) for n, v in given.items()):
            if name not in known:
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"dims: expected dynamic dimensions of the inputs "
                    f"({', '.join(known) or 'there is none'}), got {name!r}"
                    f"{did_you_mean(name, known)}",
                )
            ranges[name] = checked_range(name, value)
        return replace(self, ranges=ranges)

    def check(self, given: Given) -> dict[str, int]:
        """Raise PycError unless arrays of these (shape, dtype) fit; return the named sizes.

        Codes: ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE, DIMENSION_MISMATCH,
        DIMENSION_OUT_OF_RANGE; the message names the argument.
        """
        self.check_arguments(given)
        sizes = self.check_sizes(given)
        self.check_ranges(given)
        return sizes

    def check_arguments(self, given: Given) -> None:
        """Raise PycError for other arguments: ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE."""
        if len(given) != len(self.inputs):
            raise self._miscounted(f"{len(self.inputs)} arrays", f"{len(given)}")
        for expected, (shape, dtype) in zip(self.inputs, given, strict=True):
            _check_argument(expected, shape, dtype)

    def check_sizes(self, given: Given) -> dict[str, int]:
        """Return the named sizes. Raises PycError (DIMENSION_MISMATCH) where they disagree."""
        bound: dict[str, tuple[int, str]] = {}
        for expected, (shape, _) in zip(self.inputs, given, strict=True):
            _bind(expected, shape, bound)
        for name, number, factors in self.products:
            wanted, (size, where) = number * prod(bound[f][0] for f in factors), bound[name]
            if size != wanted:
                raise PycError(
                    ReasonCode.DIMENSION_MISMATCH,
                    f"dimension `{name}`: expected {wanted} for the sizes of the other inputs, got "
                    f"{size} on {where}",
                )
        return {name: size for name, (size, _) in bound.items()}

    def check_ranges(self, given: Given) -> None:
        """Raise PycError (DIMENSION_OUT_OF_RANGE) for sizes outside of the declared ranges."""
        for expected, (shape, _) in zip(self.inputs, given, strict=True):
            _check_ranges(expected, shape, self.ranges)

    def check_indices(self, arrays: Sequence[Any]) -> None:
        """Raise PycError (INDEX_OUT_OF_RANGE) for indices that their axes do not have."""
        if self.indices:
            check_indices(self.indices, [a.name for a in self.inputs], arrays)

    @cached_property
    def products(self) -> list[tuple[str, int, list[str]]]:
        """Dimensions whose name is a product of others, ``2*d``: name, number, other factors."""
        names = {d for a in self.inputs for d in a.shape if isinstance(d, str)}
        found = []
        for name in sorted(n for n in names if "*" in n):
            factors = name.split("*")
            number = int(factors.pop(0)) if factors[0].isdecimal() else 1
            if all(f in names for f in factors):
                found.append((name, number, factors))
        return found

    @cached_property
    def _groups(self) -> tuple[list[str], frozenset[str]]:
        """The paths of the trees that inputs belong to: the outermost, in order, and all."""
        outermost, all_paths = {}, set()
        for a in self.inputs:
            parts = a.name.split(".")
            outermost[parts[0]] = None
            all_paths.update(".".join(parts[:n]) for n in range(1, len(parts)))
        return list(outermost), frozenset(all_paths)

    def arranged(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Return one value for each input, in order: of what a call gives by position and by name.

        ``f(x, {"w": w, "b": b})`` and ``f(x, params={"w": w, "b": b})`` fit inputs ``x``,
        ``params.w`` and ``params.b``; so does one value for each input. Python numbers and lists
        of them become arrays of the input's element type. Raises PycError (ARGUMENT_COUNT,
        BAD_ARGUMENT, ARGUMENT_DTYPE).
        """
        flat = len(args) == len(self.inputs) and not named
        try:
            given = self._by_path(args, named)
        except PycError:
            # Arrays, numbers, and lists of numbers.
            leaves = all(not isinstance(a, PLAIN) or _is_numbers(a) for a in args)
            if not flat or not leaves:
                raise
            given = list(args)
        return [_as_array(a, value) for a, value in zip(self.inputs, given, strict=True)]

    def _by_path(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        outermost, _ = self._groups
        if len(args) > len(outermost):
            raise self._miscounted(f"at most {len(outermost)} by position", f"{len(args)}")
        found: dict[str, Any] = {}
        for name, value in (*zip(outermost, args, strict=False), *named.items()):
            self._place(name, value, found)
        missing = [a.name for a in self.inputs if a.name not in found]
        if missing:
            raise self._miscounted(f"an array for `{missing[0]}`", "none")
        return [found[a.name] for a in self.inputs]

    def _place(self, path: str, value: Any, found: dict[str, Any]) -> None:
        """Put the leaves of a tree at `path` into `found`, by their inputs."""
        if path in found:
            raise PycError(ReasonCode.BAD_ARGUMENT, f"call: expected one `{path}`, got two")
        if any(a.name == path for a in self.inputs):
            found[path] = value
        elif path in self._groups[1] and isinstance(value, (dict, list, tuple)):
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            for key, entry in entries:
                self._place(f"{path}.{key}", entry, found)
        elif path in self._groups[1]:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"argument `{path}`: expected a tuple, list or dict of arrays, got "
                f"{type(value).__name__}",
            )
        else:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"call: expected inputs of the program ({self._listed()}), got `{path}`; a plain "
                "value of the function is compiled in: leave it out",
            )

    def _listed(self) -> str:
        return ", ".join(f"`{a.name}`: {a}" for a in self.inputs)

    def _miscounted(self, expected: str, got: str) -> PycError:
        message = f"call: expected {expected} ({self._listed()}), got {got}"
        return PycError(ReasonCode.ARGUMENT_COUNT, message)


def _settled(name: str, dim: str | int | None, sizes: Mapping[str, int]) -> str | int | None:
    if name in sizes:
        return sizes[name]
    factors = [int(f) if f.isdecimal() else sizes.get(f) for f in name.split("*")]
    known = [f for f in factors if f is not None]
    return prod(known) if len(factors) > 1 and len(known) == len(factors) else dim


def _is_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_numbers, value))
    return isinstance(value, _NUMBERS)


def _as_array(expected: SignatureEntry, value: Any) -> Any:
    """Python numbers as an array of the input's element type; anything else as it is."""
    if not isinstance(value, PLAIN):
        return value
    where = f"argument `{expected.name}`"
    try:
        if not _is_numbers(value):
            raise ValueError("something else in it")
        found = np.asarray(value)
        if not _holds(expected.dtype, found.dtype):
            raise PycError(
                ReasonCode.ARGUMENT_DTYPE,
                f"{where}: expected numbers of element type {dtype_name(expected.dtype)}, got "
                f"{value!r:.60}; convert them",
            )
        with np.errstate(over="ignore"):
            if is_float(expected.dtype):
                return found.astype(np.float64).astype(expected.dtype)
        cast = found.astype(expected.dtype)
        if not np.array_equal(cast, found):
            raise OverflowError(f"out of the range of {dtype_name(expected.dtype)}")
        return cast
    except (OverflowError, TypeError, ValueError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{where}: expected an array, or numbers in lists of equal lengths for {expected}, got "
            f"{value!r:.60} ({error})",
        ) from None


def _holds(dtype: np.dtype, kind: np.dtype) -> bool:
    """Return whether Python numbers that numpy takes for `kind` may become `dtype`."""
    order = {"b": 0, "u": 1, "i": 1, "f": 2}
    wanted = 2 if is_float(dtype) else order.get(dtype.kind, -1)
    return order.get(kind.kind, 3) <= wanted


def checked_range(name: str, value: Any) -> Range:
    """Return a range from (low, high), both included. Raises PycError (BAD_ARGUMENT)."""
    ends = tuple(value) if isinstance(value, tuple | list) else ()
    whole = all(isinstance(e, int | np.integer) and not isinstance(e, bool) for e in ends)
    if len(ends) != 2 or not whole or not 0 <= ends[0] <= ends[1] < _SIZES:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"dims: expected the smallest and the largest size of `{name}`, such as (1, 64), "
            f"got {value!r}",
        )
    return int(ends[0]), int(ends[1])


def _check_ranges(expected: SignatureEntry, shape: tuple[int, ...], ranges: Ranges) -> None:
    for axis, name in expected.dynamic.items() if ranges else ():
        low, high = ranges.get(name, (0, shape[axis]))
        if not low <= shape[axis] <= high:
            raise PycError(
                ReasonCode.DIMENSION_OUT_OF_RANGE,
                f"dimension `{name}`: expected {low} to {high}, got {shape[axis]} on axis {axis} "
                f"of `{expected.name}`; compile with a wider range",
            )


def _check_argument(expected: SignatureEntry, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if dtype != expected.dtype:
        raise PycError(
            ReasonCode.ARGUMENT_DTYPE,
            f"argument `{expected.name}`: expected element type {dtype_name(expected.dtype)}, "
            f"got {dtype_name(dtype)}; convert it with `.astype`",
        )
    wanted, got = f"rank {len(expected.shape)}", f"rank {len(shape)}"
    if wanted == got:
        pairs = enumerate(zip(shape, expected.shape, strict=True))
        off = next((i for i, (size, dim) in pairs if type(dim) is int and size != dim), None)
        if off is None:
            return
        wanted, got = f"{expected.shape[off]} on axis {off}", str(shape[off])
    raise PycError(
        ReasonCode.ARGUMENT_SHAPE,
        f"argument `{expected.name}`: expected {expected} ({wanted}), got shape {shape} ({got}); "
        "reshape it, or compile with dynamic dimensions",
    )


def _bind(
    expected: SignatureEntry, shape: tuple[int, ...], bound: dict[str, tuple[int, str]]
) -> None:
    for axis, (dim, size) in enumerate(zip(expected.shape, shape, strict=True)):
        if not isinstance(dim, str):
            continue
        place = f"axis {axis} of `{expected.name}`"
        first, where = bound.setdefault(dim, (size, place))
        if first != size:
            raise PycError(
                ReasonCode.DIMENSION_MISMATCH,
                f"dimension `{dim}`: expected {first} as on {where}, got {size} on {place}",
            )


def encode(tree: Any) -> str:
    """Return a tree, whose leaves are the numbers of results, as text.

    Named tuples become tuples. Empty where the results come so without a text (one alone, several
    as a tuple), and for dicts with keys that JSON lacks.
    """
    plain = isinstance(tree, tuple) and len(tree) > 1 and all(isinstance(e, int) for e in tree)
    if isinstance(tree, int) or plain:
        return ""
    try:
        return json.dumps(_data(tree))
    except TypeError:
        return ""


def _data(tree: Any) -> Any:
    """Return the tree as JSON. Raises TypeError for keys that it lacks."""
    if isinstance(tree, dict):
        if not all(isinstance(key, _RESULT_KEYS) for key in tree):
            raise TypeError("a key that is no text or number")
        return [_DICT, [[key, _data(value)] for key, value in tree.items()]]
    if isinstance(tree, (list, tuple)):
        return [_TUPLE if isinstance(tree, tuple) else _LIST, [_data(value) for value in tree]]
    return tree


def decode(text: str, count: int) -> Any:
    """Return the tree of `count` results, None of an empty text. Raises ValueError for others."""
    if not text:
        return None
    try:
        tree = _tree(json.loads(text))
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"expected a tree of results, got {text:.80} ({error})") from None
    numbers = flat(tree)
    if numbers != list(range(count)):
        raise ValueError(f"expected a tree of {count} results, got {text:.80}")
    return tree


def _tree(data: Any) -> Any:
    if type(data) is int:
        return data
    kind, entries = data
    if kind == _DICT:
        return {key: _tree(value) for key, value in entries}
    if kind not in (_LIST, _TUPLE):
        raise ValueError(f"no kind {kind!r}")
    made = [_tree(value) for value in entries]
    return tuple(made) if kind == _TUPLE else made


def filled(tree: Any, values: Sequence[Any]) -> Any:
    """Return the tree with values in place of their numbers."""
    if isinstance(tree, dict):
        return {key: filled(entry, values) for key, entry in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(filled(entry, values) for entry in tree)
    return values[tree]


def flat(results: Any) -> list[Any]:
    """Return what a program's results hold, in order: the same for each structure."""
    return list(_leaves(results))


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (list, tuple, dict)):
        for entry in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(entry)
    else:
        yield tree


def require_same(
    now: Signature,
    after: Signature,
    where: str = "swap",
    remedy: str = "start another service for it",
) -> None:
    """Raise PycError (BAD_ARGUMENT) unless calls of both programs look the same."""

    def form(entries: Sequence[SignatureEntry]) -> list[tuple[Any, ...]]:
        return [
            (e.name, e.dtype, tuple(d if isinstance(d, int) else None for d in e.shape))
            for e in entries
        ]

    same = form(now.inputs) == form(after.inputs) and form(now.outputs) == form(after.outputs)
    if not same or now.results != after.results:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where=where,
            expected=f"a program with the signature of the one in place, {_shown(now)}",
            got=_shown(after),
            remedy=remedy,
        )


def _shown(signature: Signature) -> str:
    inputs = ", ".join(f"{e.name}: {e}" for e in signature.inputs)
    return f"({inputs}) -> ({', '.join(map(str, signature.outputs))})"
