"""Functions that call themselves, or one another too often, are refused before IREE starts."""

import pytest

import pyc_mlir
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree import session
from pyc_mlir.iree.session import IreeSession

T = "tensor<4xf32>"


def function(name: str, *called: str, visibility: str = "private", op: str = "func.call") -> str:
    """A function that calls others one after the other."""
    lines = [f"%v{i + 1} = {op} @{c}(%v{i}) : ({T}) -> {T}" for i, c in enumerate(called)]
    body = "\n  ".join([*lines, f"return %v{len(called)} : {T}"])
    return f"func.func {visibility} @{name}(%v0: {T}) -> {T} {{\n  {body}\n}}\n"


def module(*functions: str) -> str:
    return "module {\n" + "".join(functions) + "}\n"


def main(*called: str) -> str:
    return function("main", *called, visibility="public")


def check(text: str) -> None:
    with IreeSession() as session:
        session.parse(text.encode())


COMPOSITE = f"""func.func private @f(%x: {T}) -> {T} {{
  %0 = stablehlo.composite "own.f" %x {{decomposition = @f}} : ({T}) -> {T}
  return %0 : {T}
}}
"""
PYC = f"""func.func public @main(%x: {T}) -> {T} {{
  %0 = "pyc.add"(%x, %x) : ({T}, {T}) -> {T}
  %1 = func.call @main(%0) : ({T}) -> {T}
  return %1 : {T}
}}
"""
BRANCH = f"""func.func private @f(%n: i32, %x: {T}) -> {T} {{
  %c = arith.constant 1 : i32
  %p = arith.cmpi sle, %n, %c : i32
  %r = scf.if %p -> {T} {{ scf.yield %x : {T} }} else {{
    %m = arith.subi %n, %c : i32
    %f = func.call @f(%m, %x) : (i32, {T}) -> {T}
    scf.yield %f : {T}
  }}
  return %r : {T}
}}
func.func public @main(%n: i32, %x: {T}) -> {T} {{
  %0 = func.call @f(%n, %x) : (i32, {T}) -> {T}
  return %0 : {T}
}}
"""


@pytest.mark.parametrize(
    ("text", "cycle"),
    [
        (module(main("main")), "main -> main"),
        (module(main("f"), function("f", "main")), "main -> f -> main"),
        (module(main("f"), function("f", "g"), function("g", "f")), "f -> g -> f"),
        (module(main("f"), COMPOSITE), "f -> f"),
        (module(BRANCH), "f -> f"),
        (module(function("a\x1b", "a\x1b").replace("a\x1b", '"a\\1B"'), main()), ""),
    ],
)
def test_a_function_that_calls_itself_is_refused(text, cycle):
    """A private one that nothing reaches is left out of the program."""
    if not cycle:
        check(text)
        return
    with pytest.raises(PycError, match="expected no function that calls itself") as error:
        check(text)
    assert (
        f"got {cycle};" in error.value.message
        and error.value.code is ReasonCode.UNSUPPORTED_ATTRIBUTE
    )


@pytest.mark.parametrize("text", [module(main("main")), module(PYC)])
def test_every_road_ends_there(text):
    with pytest.raises(PycError, match="expected no function that calls itself"):
        pyc_mlir.compile(text, cache=False)


def doubling(depth: int) -> str:
    called = [function(f"f{i}", *[f"f{i + 1}"] * 2) for i in range(depth)]
    return module(main("f0"), *called, function(f"f{depth}"))


def test_calls_that_stand_for_too_many_operations_are_refused():
    check(doubling(10))
    with pytest.raises(
        PycError, match=f"at most {session.MAX_WRITTEN_OUT} operations with all calls"
    ):
        check(doubling(40))


def test_a_large_module_may_repeat_its_functions(monkeypatch):
    """The bound is none of programs that are long themselves."""
    monkeypatch.setattr(session, "MAX_WRITTEN_OUT", 100)
    check(doubling(8))
    with pytest.raises(PycError, match="with all calls written out"):
        check(doubling(16))


def test_a_long_chain_of_calls_is_none_of_these():
    links = [function(f"f{i}", f"f{i + 1}") for i in range(2000)]
    check(module(main("f0"), *links, function("f2000")))
