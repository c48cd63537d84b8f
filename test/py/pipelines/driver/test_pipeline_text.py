"""Textual pipelines: parsing, printing back, carets; options between text and fields."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.driver.options import build_pass, pass_node
from pyc_mlir.pipelines.driver.pipeline_text import (
    AnchorNode,
    PassNode,
    PassOption,
    Pipeline,
    PipelineError,
    parse_flags,
    parse_pipeline,
)


class Mode(Enum):
    FAST = "fast"
    SMALL = "small"


@dataclass(frozen=True)
class Everything:
    """A pass with an option of each type."""

    name: ClassVar[str] = "test-everything"
    count: int = option(3, "an integer")
    rate: float = option(0.5, "a number")
    quick: bool = option(False, "a boolean")
    label: str = option("x", "text")
    limit: int | None = option(None, "an integer or none")
    sizes: tuple[int, ...] = option((), "integers")
    words: tuple[str, ...] = option((), "texts")
    mode: Mode = option(Mode.FAST, "an enum")  # noqa: RUF009
    kind: Literal["a", "b"] = option("a", "a literal")

    def __post_init__(self) -> None:
        if self.count > 1000:
            raise PycError(ReasonCode.BAD_ARGUMENT, "count: expected at most 1000")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        return {}


def built(text: str) -> Everything:
    pipeline = parse_pipeline(text)
    (node,) = pipeline.root.children
    assert isinstance(node, PassNode)
    pass_ = build_pass(Everything, node, pipeline)
    assert isinstance(pass_, Everything)
    return pass_


def refused(text: str) -> PipelineError:
    with pytest.raises(PipelineError) as info:
        built(text)
    return info.value


def test_tree_of_a_pipeline() -> None:
    pipeline = parse_pipeline("builtin.module( a{x=1 y}, func.func(b,any(c)) )")
    assert pipeline.root == AnchorNode(
        "builtin.module",
        (
            PassNode("a", (PassOption("x", "1"), PassOption("y", None))),
            AnchorNode("func.func", (PassNode("b"), AnchorNode("any", (PassNode("c"),)))),
        ),
    )
    assert str(pipeline) == "builtin.module(a{x=1 y},func.func(b,any(c)))"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", "builtin.module()"),
        ("a", "builtin.module(a)"),
        ("a{}", "builtin.module(a)"),
        ("func.func(a),b", "builtin.module(func.func(a),b)"),
        ("any(a)", "any(a)"),
        (
            "a{x={1,2} y=f(b{c=1}, d) z='p q}'}",
            "builtin.module(a{x={1,2} y=f(b{c=1}, d) z='p q}'})",
        ),
        ("a{\n x=1\n\ty=2 }\n,\nb", "builtin.module(a{x=1 y=2},b)"),
        ("a{x='don}", "builtin.module(a{x='don})"),
    ],
)
def test_printing(text: str, printed: str) -> None:
    assert str(parse_pipeline(text)) == printed
    assert parse_pipeline(printed) == parse_pipeline(text)


def test_flags_make_a_pipeline() -> None:
    pipeline = parse_flags((("a", ""), ("b", "x=1 y=2"), ("a", "")))
    assert str(pipeline) == "builtin.module(a,b{x=1 y=2},a)"
    assert pipeline.implicit_nesting


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("a,", 2, "expected the name of a pass"),
        (",a", 0, "expected the name of a pass"),
        ("a(b", 1, "'(' is never closed"),
        ("a)", 1, "')' without a matching '('"),
        ("a{x=1", 1, "'{' is never closed"),
        ("a{x=[1}", 6, "'[' is closed by '}'"),
        ("a}b", 1, "expected ',' or the end"),
        ("a(b c)", 4, "expected ',' or ')'"),
        ("a{=1}", 2, "expected an option as name=value"),
        ("a{x = 1}", 4, "expected an option as name=value"),
        ("builtin.module(a),b", 18, "after the outermost builtin.module"),
        ("f(" * 200 + ")" * 200, 130, "at most 64 nested anchors"),
    ],
)
def test_carets(text: str, column: int, message: str) -> None:
    with pytest.raises(PipelineError) as info:
        parse_pipeline(text)
    assert message in info.value.summary
    assert info.value.column == column
    assert info.value.message.splitlines()[-1] == " " * (2 + column) + "^"
    assert info.value.code is ReasonCode.INVALID_PIPELINE


def test_caret_on_a_later_line() -> None:
    with pytest.raises(PipelineError) as info:
        parse_pipeline("a,\n  b{,\nc")
    assert info.value.message.startswith("pass pipeline:2:4: error: ")
    assert info.value.message.splitlines()[1:] == ["    b{,", "     ^"]


@given(st.text("ab.(){}[],= '\"x", max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        pipeline = parse_pipeline(text)
    except PipelineError as error:
        assert 0 <= error.column <= len(text)
    else:
        assert parse_pipeline(str(pipeline)) == pipeline


def test_options_of_each_type() -> None:
    text = (
        "test-everything{count=0x10 rate=1e-3 quick label='a b' limit=7 sizes={1,2} "
        "words={p, q} mode=small kind=b}"
    )
    assert built(text) == Everything(16, 1e-3, True, "a b", 7, (1, 2), ("p", "q"), Mode.SMALL, "b")
    assert built("test-everything{quick=0 limit=none sizes=4}") == Everything(sizes=(4,))


@given(
    st.builds(
        Everything,
        st.integers(-1000, 1000),
        st.floats(allow_nan=False),
        st.booleans(),
        st.text("ab {},", max_size=5),
        st.none() | st.integers(),
        st.tuples() | st.tuples(st.integers(), st.integers()),
        st.tuples() | st.tuples(st.text("ab", min_size=1)),
        st.sampled_from(Mode),
        st.sampled_from(["a", "b"]),
    )
)
def test_options_round_trip(pass_: Everything) -> None:
    assert built(str(pass_node(pass_))) == pass_


def test_defaults_are_not_printed() -> None:
    assert str(pass_node(Everything())) == "test-everything"
    assert str(pass_node(replace(Everything(), quick=True))) == "test-everything{quick=true}"


@pytest.mark.parametrize(
    ("options", "column", "message"),
    [
        ("cuont=1", 16, "has no option 'cuont'; did you mean 'count'?"),
        ("zzz=1", 16, "has no option 'zzz'; it has count, rate"),
        ("count=many", 22, "expected an integer, got 'many'"),
        ("count", 16, "expected an integer after '=', got nothing"),
        ("rate=fast", 21, "expected a number"),
        ("quick=perhaps", 22, "expected true or false"),
        ("sizes={1,b}", 22, "expected a list {x,y} of which each is an integer"),
        ("mode=large", 21, "expected one of fast, small"),
        ("kind=c", 21, "expected one of a, b"),
        ("limit=soon", 22, "expected an integer or none"),
        ("count=1 count=2", 24, "option 'count' is given twice"),
        ("count=2000", 0, "count: expected at most 1000"),
    ],
)
def test_bad_options(options: str, column: int, message: str) -> None:
    error = refused(f"test-everything{{{options}}}")
    assert message in error.summary
    assert error.column == column


def test_columns_do_not_count_in_equality() -> None:
    assert Pipeline(parse_pipeline(" a ").root) == parse_pipeline("a")
