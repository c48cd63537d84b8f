"""Spaces of configurations that a strategy searches.

A space is a product of axes, of which some combinations are legal. A `Config` holds an index into
the values of each axis, so that strategies never meet the values themselves; `KnobSpace.settings`
names them. Features for learned models are the logarithm of a number and how often two divides it:
tile sizes and widths matter by their magnitude and by what they are multiples of.

A space around something that exists has a `default`. Its other configurations are variants, named
by what differs from the default: ``gemm:matmul[height=4,unroll=8]``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode

Config = tuple[int, ...]
# Draws of a random combination before a space counts as empty.
_DRAWS = 10_000
# Combinations that are listed one by one to find the legal ones.
_LISTED = 1 << 16
_VARIANT = re.compile(r"(?P<alternative>[^\[\]]+)\[(?P<label>[^\[\]]+)\]")


def variant_name(alternative: str, label: str) -> str:
    """Return the name of an alternative's variant `label`; without a label, the alternative's."""
    return f"{alternative}[{label}]" if label else alternative


def split_variant(name: str) -> tuple[str, str]:
    """Return the alternative and the label of a name; the label is empty if it has none."""
    found = _VARIANT.fullmatch(name)
    return (found["alternative"], found["label"]) if found else (name, "")


@dataclass(frozen=True)
class Knob:
    """One knob: its name and the values that it can take."""

    name: str
    values: tuple[Any, ...]

    @property
    def is_ordered(self) -> bool:
        """True if the values are numbers, between which a model may interpolate."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)


@dataclass(frozen=True)
class KnobSpace:
    """A product of axes; `is_legal` decides which combinations can be built.

    default: the configuration that is built where none is named; empty if there is none.
    """

    axes: tuple[Knob, ...]
    is_legal: Callable[[Config], bool] = field(default=lambda config: True, compare=False)
    default: Config = ()

    def __post_init__(self) -> None:
        for axis in self.axes:
            if not axis.values:
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"knob `{axis.name}`: expected at least one value, got none",
                )

    @staticmethod
    def of_rows(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> "KnobSpace":
        """Return the space whose legal configurations are the given rows of values."""
        values = [tuple(sorted({row[i] for row in rows})) for i in range(len(names))]
        index = [{v: k for k, v in enumerate(of_axis)} for of_axis in values]
        legal = {tuple(of[v] for of, v in zip(index, row, strict=True)) for row in rows}
        made = KnobSpace(tuple(map(Knob, names, values)), legal.__contains__)
        # Drawing combinations until one is legal would take long where few are.
        vars(made)["_listed"] = sorted(legal)
        return made

    @property
    def combinations(self) -> int:
        """The number of combinations, legal or not."""
        return prod(len(axis.values) for axis in self.axes)

    def config(self, settings: Mapping[str, Any]) -> Config:
        """Return the configuration with these values. Raises PycError (BAD_ARGUMENT) if unknown."""
        try:
            return tuple(axis.values.index(settings[axis.name]) for axis in self.axes)
        except (KeyError, ValueError) as error:
            names = ", ".join(axis.name for axis in self.axes)
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"settings: expected a value of each of {names}, got {dict(settings)!r}",
            ) from error

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the value of each knob."""
        return {a.name: a.values[i] for a, i in zip(self.axes, config, strict=True)}

    def label(self, config: Config) -> str:
        """Return the settings that differ from the default, by axis; empty for the default.

        ``height=4,workgroups=2x1``: tuples are joined by x, truth values in lower case.
        """
        places = zip(self.axes, config, self.default, strict=True)
        return ",".join(f"{a.name}={_text(a.values[i])}" for a, i, own in places if i != own)

    def labelled(self, label: str) -> Config:
        """Return the legal configuration of a label. Raises PycError (BAD_ARGUMENT) otherwise."""
        parts = (part.partition("=") for part in label.split(","))
        wanted = {name: text for name, _, text in parts}
        config = list(self.default)
        for place, axis in enumerate(self.axes):
            texts = [_text(value) for value in axis.values]
            if wanted.get(axis.name) in texts:
                config[place] = texts.index(wanted[axis.name])
        made = tuple(config)
        # Each variant has one name: other orders, and settings of the default, are none.
        if self.label(made) != label:
            names = ", ".join(f"{a.name}={'|'.join(map(_text, a.values))}" for a in self.axes)
            raise _unknown(f"other values than the default's, in the order of {names}", label)
        if not self.is_legal(made):
            raise _unknown("values of which a kernel can be built", label)
        return made

    def __iter__(self) -> Iterator[Config]:
        """Yield all legal configurations in order, found one by one."""
        ranges = (range(len(axis.values)) for axis in self.axes)
        return (config for config in product(*ranges) if self.is_legal(config))

    def sample(self, rng: np.random.Generator) -> Config:
        """Draw a random legal configuration. Raises PycError (BAD_ARGUMENT) if none is found."""
        if self._listed is not None:
            return self._listed[int(rng.integers(len(self._listed)))]
        for _ in range(_DRAWS):
            config = tuple(int(rng.integers(len(axis.values))) for axis in self.axes)
            if self.is_legal(config):
                return config
        raise self._empty()

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Yield the legal configurations that differ in one knob, in order of the axes."""
        for place, axis in enumerate(self.axes):
            for index in range(len(axis.values)):
                other = (*config[:place], index, *config[place + 1 :])
                if index != config[place] and self.is_legal(other):
                    yield other

    def features(self, configs: Sequence[Config]) -> np.ndarray:
        """f64[configs, features] in [0, 1] for a model that learns from a few configurations."""
        rows = np.array(configs, np.int64).reshape(len(configs), len(self.axes))
        columns = [table[rows[:, axis]] for axis, table in enumerate(self._tables)]
        return np.concatenate(columns, axis=1)

    @cached_property
    def _listed(self) -> list[Config] | None:
        """All legal configurations of a small space; None for a large one."""
        if self.combinations > _LISTED:
            return None
        found = list(self)
        if not found:
            raise self._empty()
        return found

    @cached_property
    def _tables(self) -> list[np.ndarray]:
        return [_axis_features(axis) for axis in self.axes]

    def _empty(self) -> PycError:
        return PycError(ReasonCode.BAD_ARGUMENT, "space: expected a legal configuration, got none")


def _unknown(expected: str, came: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"variant: expected {expected}, got {came!r}")


def _text(value: Any) -> str:
    """Write a value in a label."""
    if isinstance(value, tuple):
        return "x".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _axis_features(axis: Knob) -> np.ndarray:
    """f64[values, features]: magnitude and power of two of numbers, an indicator of all else."""
    if not axis.is_ordered:
        return np.eye(len(axis.values))
    values = np.array(axis.values, np.float64)
    columns = [np.sign(values) * np.log2(1 + np.abs(values))]
    if len(axis.values) > 2 and all(isinstance(v, int) for v in axis.values):
        columns.append(np.array([_power_of_two(int(v)) for v in axis.values], np.float64))
    table = np.stack(columns, axis=1)
    table -= table.min(axis=0)
    return table / np.maximum(table.max(axis=0), 1e-9)


def _power_of_two(value: int) -> int:
    """Count the factors 2 of a number; 0 for 0."""
    return (value & -value).bit_length() - 1 if value else 0
