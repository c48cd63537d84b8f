"""Texts that MLIR's parser would not survive are refused with a place; all others pass."""

from pathlib import Path

import opt_harness
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir
from pyc_mlir.pipelines.text.input_text import first_excess


def op(attribute: str) -> str:
    return f'module {{ "pyc.relu"() {{x = {attribute}}} : () -> () }}'


def chain(links: int, begin: str = "[", end: str = "]", sign: str = "#") -> str:
    """An attribute within an attribute within ..., each under a name of its own."""
    lines = [f"{sign}n{i + 1} = {begin}{sign}n{i}{end}\n" for i in range(links)]
    return "".join((f"{sign}n0 = [1]\n", *lines, op(f"{sign}n{links}")))


def doubled(links: int) -> str:
    lines = [f"#n{i + 1} = [#n{i}, #n{i}]\n" for i in range(links)]
    return "".join(("#n0 = [1]\n", *lines, op(f"#n{links}")))


def affine(signs: str) -> str:
    return op(f"affine_map<(d0) -> ({signs}d0)>")


WRONG = {
    "brackets": (op("[" * 600 + "]" * 600), "nested brackets"),
    "named attributes": (chain(600), "nested brackets"),
    "named attributes with brackets": (chain(40, "[" * 20, "]" * 20), "nested brackets"),
    "named locations": (chain(600, 'loc("a"(', "))"), "nested brackets"),
    "named types": (chain(600, "tuple<", ">", "!"), "nested brackets"),
    "over several lines": (chain(600, "// ]]]\n  [\n", "]\n"), "nested brackets"),
    "a name that a comment gives again": (
        chain(300) + "\n// #n300 = 1\n" + '"#n300 = 1"\n' + chain(300).replace("#n0 ", "#n300 "),
        "nested brackets",
    ),
    "names used twice": (doubled(40), "written out"),
    "signs": (affine("-" * 600), "signs"),
    "signs apart": (affine("- \n" * 600), "signs"),
    "signs with comments": (affine("- // x\n" * 600), "signs"),
    "digits": (op("9" * 3000), "digits"),
    "wide integers": (op("[1 : i16777215, 2 : i16777215]"), "bits"),
    "wide elements": (op("dense<1> : tensor<4x?xsi16777215>"), "bits"),
    "wide, with zeros": (op("1 : i0016777215"), "bits"),
    "dimensions": (op(f"tensor<{'1x' * 3000}f32>"), "dimensions"),
    "dynamic dimensions": (op(f"tensor<{'?x' * 3000}f32>"), "dimensions"),
    "hexadecimal digits": (op("0x" + "f" * 3000), "digits"),
}
RIGHT = {
    "brackets": op("[" * 300 + "]" * 300),
    "one after another": op("[[1], " + "[1], " * 2000 + "[1]]"),
    "many arrows": op("[" + "() -> (), " * 2000 + "() -> ()]"),
    "in strings and comments": op('"' + "[" * 600 + '"') + "// " + "[" * 600 + "-" * 600,
    "digits in a string": op('dense<"0x' + "0" * 8000 + '"> : tensor<1000xf32>'),
    "names like wide integers": op('[@i16777215, #i16777215, "i16777215", i9999, xi16777215]'),
    "many dimensions": op(f"[tensor<{'1x' * 2000}f32>, tensor<{'1x' * 2000}f32>]"),
    "many names": "".join(f"#n{i} = [{i}]\n" for i in range(5000)) + op("[#n7, #n8]"),
    "a chain": chain(40) + doubled(12).replace("#n", "#m"),
    "a name used often": "#map = affine_map<(d0) -> (d0)>\n" + op(f"[{'#map, ' * 20000}#map]"),
    "an end too early": "]" * 20 + op("[1]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_before_it_is_parsed(name):
    text, expected = WRONG[name]
    with pytest.raises(PycError, match=expected) as caught:
        parse_mlir(text + "\n", new_context())
    assert caught.value.code is ReasonCode.INVALID_IR and "<text>:" in caught.value.message


@pytest.mark.parametrize("name", RIGHT)
def test_accepted(name):
    assert first_excess(RIGHT[name]) is None


def test_the_place_is_where_the_bound_is_passed():
    found = first_excess(op("[" * 600))
    assert found is not None and found.index == op("[").index("[") + 498


@pytest.mark.full
def test_tests_are_accepted():
    texts = [p.read_text() for p in sorted(Path(opt_harness.LIT_ROOT).rglob("*.mlir"))]
    assert sum(first_excess(t) is not None for t in texts) <= 1, "nesting.mlir is refused"
