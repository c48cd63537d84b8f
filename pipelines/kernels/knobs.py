"""Knobs: frozen dataclasses of numbers, strings, tuples and such dataclasses, that name a kernel.

A field is a number of at least 1 or as its `knob` says, or a size (`Dim`): a number, or the name of
one that is known at run time only. From what the fields declare come the checks, the values that
tuning tries (`space_around`), and the knobs of known sizes (`KernelKnobs.at`).

A kernel crosses from one MLIR to another as an attribute: the name of its family and its knobs as
text, ``Rows(operation='softmax', rows=128, ...)``. Reading it evaluates nothing.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache, reduce
from types import UnionType
from typing import Any, ClassVar, Self, Union, cast, get_args, get_origin, get_type_hints

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.space import Config, Knob, KnobSpace
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand, WindowCount
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, IndexLike, least
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.target import Target

# What several families try.
UNROLLS = (1, 2, 4, 8)
HEIGHTS = (1, 2, 3, 4, 6, 8, 10, 12, 14)
PANELS = (16, 32, 48, 64)
# Values to try of a field, also by the knobs and the target.
Tries = Iterable[Any] | Callable[[Any, Target], Iterable[Any]]
_hints = lru_cache(maxsize=128)(get_type_hints)


@dataclass(frozen=True)
class _Declared:
    """The declaration of a field: values to try, and what it may be."""

    tries: Tries = ()
    least: int = 1
    most: int | None = None
    multiple: int = 1
    among: tuple[str, ...] = ()

    def expected(self, value: Any) -> str:
        """Return what was expected of a value that is none of the field; "" for one that is."""
        if isinstance(value, tuple):
            return next(filter(None, map(self.expected, value)), "")
        if self.among and value not in self.among:
            return f"one of {', '.join(self.among)}"
        if not isinstance(value, int) or isinstance(value, bool):
            return ""
        if value < self.least:
            return f"at least {self.least}"
        if self.most is not None and value > self.most:
            return f"at most {self.most}"
        return f"multiples of {self.multiple}" if value % self.multiple else ""


_PLAIN = _Declared()


def knob(
    default: Any,
    tries: Tries = (),
    *,
    least: int = 1,
    most: int | None = None,
    multiple: int = 1,
    among: Iterable[str] = (),
) -> Any:
    """Declare a field: numbers from `least` to `most` in multiples, or a string `among` some.

    `tries` are values that tuning tries, or a function of the knobs and the target that gives them.
    """
    declared = _Declared(tries, least, most, multiple, tuple(among))
    return field(default=default, metadata={"declared": declared})


def one_of(among: Iterable[str]) -> dict[str, Any]:
    """Return the metadata of a required field that is one of some strings."""
    return {"declared": _Declared(among=tuple(among))}


@lru_cache(maxsize=128)
def _declared(kind: type) -> dict[str, _Declared]:
    return {f.name: f.metadata.get("declared", _PLAIN) for f in fields(kind)}


class Sized:
    """A frozen dataclass some of whose sizes (`Dim`) may be names."""

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return the same with its sizes known: each name stands for its number."""
        hints = _hints(type(self))
        own = {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}
        known = {n: _at(v, hints[n] in (Dim, tuple[Dim, ...]), sizes) for n, v in own.items()}
        changed = {n: v for n, v in known.items() if v is not own[n]}
        return replace(cast(Any, self), **changed) if changed else self


def _at(value: Any, is_size: bool, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, Sized):
        return value.at(sizes)
    if is_size and isinstance(value, str):
        return sizes[value]
    if is_size and isinstance(value, tuple):
        return tuple(_at(v, True, sizes) for v in value)
    return value


class KernelKnobs(Sized):
    """The base of a family's knobs: one kernel to be, described by its fields.

    A field is checked by what it declares, then all by `_misfit`; PycError (BAD_ARGUMENT) is raised
    for values that are no kernel. A family gives `operands`, the code (`_body`) and, where the
    defaults do not do, the rest. `speed` is the kind of kernel whose speed the cost model takes:
    the family's name unless another is given.
    """

    family: ClassVar[str]
    speed: ClassVar[str]
    # Names of operands that are too small to count as memory traffic.
    small: ClassVar[tuple[str, ...]] = ()
    # False where what is laid out when compiling takes no more memory than the model's constants.
    lays_out: ClassVar[bool] = True
    # See `Kernel.merged`.
    merged_dims: ClassVar[tuple[tuple[str, int], ...]] = ()
    workgroups: Any

    def __init_subclass__(cls, family: str = "", speed: str = "") -> None:
        if family:
            cls.family = family
            if "speed" not in vars(cls):
                cls.speed = speed or family

    def __post_init__(self) -> None:
        for name, declared in _declared(type(self)).items():
            value = getattr(self, name)
            if expected := declared.expected(value):
                raise no_kernel(self.family, f"`{name}`: {expected}", value)
        if expected := self._misfit():
            raise no_kernel(self.family, expected, self)

    @property
    def flops(self) -> float:
        """The operations of a call."""
        return 0

    @property
    def counted(self) -> Self:
        """The same kernel as costs count its operands."""
        return self

    def operands(self) -> tuple[Operand, ...]:
        """Return the kernel's memory."""
        raise NotImplementedError

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`."""
        operands = self.operands()
        names = [o.name for o in operands]

        def body(k: Build, *memory: Memory) -> None:
            self._body(k, dict(zip(names, memory, strict=True)))

        others = (self._in_place(), self.merged_dims, self._window_counts())
        return Kernel(name, operands, self._grid, body, *others)

    def refusal(self, target: Target) -> str:
        """Return why there is no such kernel for a target that has kernels, or ""."""
        return ""

    def _misfit(self) -> str:
        """Return what was expected of fields that do not fit together; "" where they do."""
        return ""

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        """Return pairs of a result and an input whose memory it may take."""
        return ()

    def _window_counts(self) -> tuple[WindowCount, ...]:
        """Return the sizes of results that follow from one of the inputs."""
        return ()

    def _grid(self, size: Callable[[Dim], Index]) -> Sequence[IndexLike]:
        """Return the workgroups, from the sizes of dimensions."""
        if cut := self._cut():
            return [size(dimension).ceildiv(part) for dimension, part in cut]
        return self.workgroups if isinstance(self.workgroups, tuple) else (self.workgroups,)

    def _cut(self) -> tuple[tuple[Dim, int], ...]:
        """Return sizes that workgroups cut into parts, along each dimension of the grid."""
        return ()

    def _part(self, k: Build, along: int = 0) -> tuple[Index, Index]:
        """Return where this workgroup's part of what is `_cut` starts and ends."""
        size, part = self._cut()[along]
        first = k.workgroup(along) * part
        return first, least(first + part, k.size(size))

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        """Emit the code, from the memory of each operand by its name."""
        raise NotImplementedError


def no_kernel(kernel: str, expected: str, came: object) -> PycError:
    """Make the error for knobs that make no kernel: values that do not fit together."""
    return PycError(ReasonCode.BAD_ARGUMENT, f"{kernel} kernel: expected {expected}, got {came!r}")


def space_around(knobs: Any, target: Target, refusal: Callable[[Any], str]) -> KnobSpace | None:
    """Return the space around `knobs` of the values that their fields try.

    Its default is `knobs`, its axes are named after fields, ``images.width`` for those of knobs
    within. What cannot be constructed, or is refused, is not legal. None where no field has a
    second value.
    """
    axes, own = [], []
    for name, tried in _tries(knobs, target):
        value = reduce(getattr, name.split("."), knobs)
        if {value, *tried} != {value}:
            axes.append(Knob(name, tuple(sorted({value, *tried}))))
            own.append(axes[-1].values.index(value))
    if not axes:
        return None

    def is_legal(config: Config) -> bool:
        settings = {a.name: a.values[i] for a, i in zip(axes, config, strict=True)}
        try:
            return not refusal(with_settings(knobs, settings))
        except PycError:
            return False

    return KnobSpace(tuple(axes), is_legal, tuple(own))


def _tries(knobs: Any, target: Target) -> Iterator[tuple[str, set[Any]]]:
    for name, declared in _declared(type(knobs)).items():
        value = getattr(knobs, name)
        if isinstance(value, KernelKnobs):
            yield from ((f"{name}.{inner}", tried) for inner, tried in _tries(value, target))
            continue
        tries = declared.tries
        yield name, set(tries(knobs, target) if callable(tries) else tries)


def with_settings(knobs: Any, settings: Mapping[str, Any]) -> Any:
    """Return the knobs with other values of some fields. Raises PycError if they do not fit."""
    nested: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in settings.items():
        outer, _, inner = name.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            own[name] = value
    for outer, inner in nested.items():
        own[outer] = with_settings(getattr(knobs, outer), inner)
    return replace(knobs, **own)


def known(dim: Dim) -> int:
    """Return a size, the nominal one for a dynamic dimension."""
    return dim if isinstance(dim, int) else NOMINAL_DIMENSION


def up_to(values: Iterable[int], size: Dim) -> list[int]:
    """Return the values that a size is as large as; all for an unknown size."""
    return [v for v in values if isinstance(size, str) or v <= size]


def below(values: Iterable[int], size: Dim) -> list[int]:
    """Return the values below a size; all for an unknown one."""
    return [v for v in values if isinstance(size, str) or v < size]


def shares(target: Target, most: int) -> list[int]:
    """Return workgroups to try: one, and up to four for each core, of at most so many parts."""
    wanted = {1, *(target.cores * each for each in (1, 2, 4))} if target.cores > 1 else {1}
    return sorted(n for n in wanted if n <= max(1, most))


def cuts(target: Target, *most: int) -> list[tuple[int, ...]]:
    """Return grids to try: workgroups along one of the dimensions, of at most so many parts."""
    return sorted(
        {
            tuple(n if place == at else 1 for place in range(len(most)))
            for at, parts in enumerate(most)
            for n in shares(target, parts)
        }
    )


def parts_of(target: Target, size: Dim, unknown: Iterable[int] = (1, 4, 16, 64)) -> Iterable[int]:
    """Return parts to try of a dimension: all of it, or even shares of some workgroups."""
    if isinstance(size, str):
        return unknown
    return sorted({-(-size // n) for n in shares(target, size)})


def encode(knobs: Any) -> str:
    """Write all fields, in their order."""
    return repr(knobs)


@lru_cache(maxsize=128)
def decode(kind: type, text: str) -> Any:
    """Read what `encode` was given. Raises PycError (BAD_ARGUMENT) for other text.

    A compile reads each text for the call, the dispatch and the code; knobs never change.
    """
    try:
        made = _value(ast.parse(text, mode="eval").body, {k.__name__: k for k in _kinds(kind)})
    except (SyntaxError, TypeError, ValueError) as error:
        raise _refusal(kind, f"{text[:80]!r} ({error})") from None
    if type(made) is not kind:
        raise _refusal(kind, repr(text[:80]))
    return made


def _refusal(kind: type, came: str) -> PycError:
    expected = f"{kind.__name__}(field=value, ...)"
    return PycError(ReasonCode.BAD_ARGUMENT, f"kernel: expected the knobs {expected}, got {came}")


_CONSTANTS = (int, float, str, bool, type(None))


def _kinds(hint: Any) -> Iterator[type]:
    """Yield a dataclass and those that its fields may hold."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
        for f in fields(hint):
            yield from _kinds(_hints(hint)[f.name])
    for inner in get_args(hint):
        yield from _kinds(inner)


def _value(node: ast.expr, kinds: dict[str, type]) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_value(e, kinds) for e in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        given = {k.arg: _value(k.value, kinds) for k in node.keywords if k.arg is not None}
        if node.func.id in kinds and len(given) == len(node.keywords):
            return _checked(kinds[node.func.id], given)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, kinds)
        if type(value) in (int, float):
            return -value
    if isinstance(node, ast.Constant) and type(node.value) in _CONSTANTS:
        return node.value
    raise ValueError(f"expected numbers, strings and tuples, got {ast.unparse(node)}")


def _checked(kind: type, given: dict[str, Any]) -> Any:
    """Construct the dataclass, once its fields have their declared types."""
    hints = _hints(kind)
    for name, value in given.items():
        if name in hints and not _is(value, hints[name]):
            expected = getattr(hints[name], "__name__", str(hints[name]))
            raise TypeError(f"`{name}`: expected {expected}, got {value!r}")
    return kind(**given)


def _is(value: Any, hint: Any) -> bool:
    """Return whether a value has exactly the type of a hint (True is no int)."""
    inner, kind = get_args(hint), get_origin(hint)
    if kind is tuple:
        if type(value) is not tuple:
            return False
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(kinds) and all(map(_is, value, kinds))
    if kind in (Union, UnionType):
        return any(_is(value, h) for h in inner)
    known = hint in (int, float, str, bool) or is_dataclass(hint)
    return type(value) is hint or not known
