"""Spaces of knobs around a kernel.

Comes in: the knobs of a family's offer, values to try of some fields, the family's `refusal`. Goes
out: a `KnobSpace` whose default is that offer and whose axes are named after fields,
``images.width`` for those of a dataclass within. What cannot be constructed, or is refused, is not
legal.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.choices.space import Config, Knob, KnobSpace
from pyc_mlir.pipelines.target.target import Target

# What several families try.
UNROLLS = (1, 2, 4, 8)
HEIGHTS = (1, 2, 3, 4, 6, 8, 10, 12, 14)
PANELS = (16, 32, 48, 64)


def knob_space(
    knobs: Any, values: Mapping[str, Iterable[Any]], refusal: Callable[[Any], str]
) -> KnobSpace | None:
    """Return the space around `knobs`; None where no field has a second value."""
    own = {name: reduce(getattr, name.split("."), knobs) for name in values}
    axes = tuple(
        Knob(name, tuple(sorted({own[name], *tried})))
        for name, tried in values.items()
        if {own[name], *tried} != {own[name]}
    )
    if not axes:
        return None

    def is_legal(config: Config) -> bool:
        settings = {a.name: a.values[i] for a, i in zip(axes, config, strict=True)}
        try:
            return not refusal(with_settings(knobs, settings))
        except PycError:
            return False

    default = tuple(axis.values.index(own[axis.name]) for axis in axes)
    return KnobSpace(axes, is_legal, default)


def with_settings(knobs: Any, settings: Mapping[str, Any]) -> Any:
    """Return the knobs with other values of some fields. Raises PycError if they do not fit."""
    nested: dict[str, dict[str, Any]] = {}
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        outer, _, inner = name.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            fields[name] = value
    for outer, inner in nested.items():
        fields[outer] = with_settings(getattr(knobs, outer), inner)
    return replace(knobs, **fields)


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


def parts_of(target: Target, size: int) -> list[int]:
    """Return parts to try of a dimension: all of it, or even shares of some workgroups."""
    return sorted({-(-size // n) for n in shares(target, size)})
