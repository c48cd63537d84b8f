"""Frozen dataclasses become plain data and come back, driven by the types of their fields."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from pyc_mlir.dialects.util.codec import Form, fits, from_data, to_data, type_name


class Colour(Enum):
    """Any enum."""

    RED = "red"


@dataclass(frozen=True)
class Inner:
    """A dataclass in another one."""

    value: float
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outer:
    """A field of each type that the codec takes."""

    count: int
    on: bool
    text: str
    inner: Inner
    colour: Colour = Colour.RED
    mode: Literal["a", "b"] = "a"
    where: Path | None = None
    either: str | Inner = "x"
    texts: Sequence[str] = ()
    rows: tuple[Inner, ...] = ()
    pair: tuple[str, int] = ("", 0)
    named: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    plain: Any = None


FULL = Outer(
    3, True, "t", Inner(0.1, frozenset("ba")), Colour.RED, "b", Path("a/b"), Inner(-0.0),
    ("x", "y"), (Inner(math.inf), Inner(1e-300)), ("p", 7), {"n": (1, 64)}, {"k": [1, None]},
)  # fmt: skip


@pytest.mark.parametrize("value", [FULL, Outer(0, False, "", Inner(2.5))])
def test_data_and_back(value):
    data = to_data(value)
    assert from_data(Outer, json.loads(json.dumps(data, allow_nan=False))) == value
    assert to_data(from_data(Outer, data)) == data


def test_plain_data():
    assert to_data({"a": (1, 2.5, None, frozenset("ba"))}) == {"a": [1, 2.5, None, ["a", "b"]]}
    assert to_data(float("inf")) == "inf" and math.isnan(from_data(float, "nan"))
    for odd in (object(), {1: 2}, b"x", np.float32(1), frozenset({1})):
        with pytest.raises(ValueError, match="x is a"):
            to_data(odd, "x")


def changed(**fields: Any) -> dict[str, Any]:
    return {**to_data(FULL), **fields}


BAD = [
    (changed(count=True), r"Outer\.count: expected int, got True"),
    (changed(on=1), r"Outer\.on: expected bool"),
    (changed(text=None), r"Outer\.text: expected str"),
    (changed(inner={"value": "much"}), r"Outer\.inner\.value: expected float"),
    (changed(inner={}), r"Outer\.inner\.value: expected a value, got none"),
    (changed(inner={"value": 1.0, "odd": 2}), r"Outer\.inner: .*got `odd`"),
    (changed(colour="blue"), r"Outer\.colour: expected Colour"),
    (changed(mode="c"), r"Outer\.mode: expected 'a' or 'b'"),
    (changed(where=3), r"Outer\.where: expected Path"),
    (changed(either=3), r"Outer\.either: expected str or Inner"),
    (changed(texts="xy"), r"Outer\.texts: expected Sequence\[str\]"),
    (changed(rows=[{"value": None}]), r"Outer\.rows\[0\]\.value"),
    (changed(pair=["p"]), r"Outer\.pair: expected tuple\[str, int\]"),
    (changed(named={"n": [1]}), r"Outer\.named\.n: expected tuple\[int, int\]"),
    (changed(named=[]), r"Outer\.named: expected Mapping"),
    ([], r"Outer: expected Outer"),
]


@pytest.mark.parametrize(("data", "message"), BAD)
def test_other_data_is_refused_by_field(data, message):
    with pytest.raises(ValueError, match=message):
        from_data(Outer, data)


def test_a_form_says_how_a_type_is_written():
    forms = {Inner: Form(lambda v: [v.value], lambda d: Inner(d[0]))}
    data = to_data(Outer(1, True, "", Inner(2.0)), forms=forms)
    assert data["inner"] == [2.0]
    assert from_data(Outer, data, forms=forms).inner == Inner(2.0)


def test_which_values_fit_a_type():
    assert fits(str | None, None) and fits(Sequence[str], ["a"]) and fits(Path | str, Path("a"))
    assert fits(float, 1) and fits(Mapping[str, int] | None, {"a": 1}) and fits(Any, object())
    assert not fits(int, True) and not fits(float, True) and not fits(Sequence[str], "ab")
    assert not fits(Sequence[str], [1]) and not fits(str | Inner, 3)
    assert type_name(str | Path | None) == "str, Path or None"
