"""Textual pass pipelines: text -> frozen tree with source columns -> text.

The grammar is mlir-opt's::

    pipeline := [element ("," element)*]
    element  := name "(" pipeline ")"            an anchor: run inside each op of that name
              | name ["{" option* "}"]           a pass
    option   := name ["=" value]                 separated by spaces; a value may nest brackets

The outer ``builtin.module(...)`` may be left out. Nothing is looked up here: whether a pass, an
option or an anchor exists is `pass_manager.resolve`'s question. Needs no MLIR.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyc_mlir.dialects.errors import PycError, ReasonCode

MODULE = "builtin.module"
ANY = "any"
MAX_DEPTH = 64

_NAME = re.compile(r"[A-Za-z_][\w.$-]*")
_OPTION_NAME = re.compile(r"[A-Za-z_][\w-]*")
_SPACE = re.compile(r"\s*")
_CLOSING = {"{": "}", "(": ")", "[": "]"}


class PipelineError(PycError):
    """A pipeline that cannot run.

    The message: ``pass pipeline:LINE:COL: error: message``, the line, and a caret under the fault.
    """

    def __init__(self, text: str, column: int, message: str) -> None:
        before = text[:column]
        line = before.count("\n")
        at = column - before.rfind("\n") - 1
        shown = text.split("\n")[line]
        told = f"pass pipeline:{line + 1}:{at + 1}: error: {message}\n  {shown}\n  {' ' * at}^"
        super().__init__(ReasonCode.INVALID_PIPELINE, told)
        self.column = column
        self.summary = message


@dataclass(frozen=True)
class PassOption:
    """``name=value`` as written; `value` is None for a bare name."""

    name: str
    value: str | None
    column: int = field(default=0, compare=False)

    @property
    def value_column(self) -> int:
        """The column of the value, or of the name when there is none."""
        return self.column if self.value is None else self.column + len(self.name) + 1

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True)
class PassNode:
    """A pass with its options as text."""

    name: str
    options: tuple[PassOption, ...] = ()
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        options = " ".join(str(o) for o in self.options)
        return f"{self.name}{{{options}}}" if options else self.name


@dataclass(frozen=True)
class AnchorNode:
    """``op.name(...)``: what runs inside each op of that name."""

    name: str
    children: "tuple[PassNode | AnchorNode, ...]" = ()
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.name}({','.join(str(c) for c in self.children)})"


Node = PassNode | AnchorNode


@dataclass(frozen=True)
class Pipeline:
    """A parsed pipeline: its outermost anchor, and the text that the columns point into.

    With `implicit_nesting` a native pass that only runs on another op is wrapped in that anchor,
    as mlir-opt does for passes given as flags.
    """

    root: AnchorNode
    text: str = field(default="", compare=False)
    implicit_nesting: bool = field(default=False, compare=False)

    def error(self, column: int, message: str) -> PipelineError:
        """Make an error that points at `column` of this pipeline's text."""
        return PipelineError(self.text, column, message)

    def __str__(self) -> str:
        return str(self.root)


def parse_pipeline(text: str, root: str = MODULE) -> Pipeline:
    """Parse `text`; elements outside an outer ``root(...)`` or ``any(...)`` run on `root`.

    Raises PipelineError, with a caret, for unbalanced brackets and malformed names.
    """
    return Pipeline(_rooted(text, root), text)


def parse_flags(passes: tuple[tuple[str, str], ...], root: str = MODULE) -> Pipeline:
    """Parse command-line flags: (pass, options as text) in the order given."""
    parts = (f"{name}{{{options}}}" if options else name for name, options in passes)
    text = ",".join(parts)
    return Pipeline(_rooted(text, root), text, implicit_nesting=True)


def _rooted(text: str, root: str) -> AnchorNode:
    elements = _Parser(text).parse()
    match elements:
        case (AnchorNode(name=name) as outer,) if name in (root, ANY):
            return outer
        case (AnchorNode(name=name), second, *_) if name == root:
            message = f"expected the end of the pipeline after the outermost {root}(...)"
            raise PipelineError(text, second.column, message)
        case _:
            return AnchorNode(root, elements)


class _Parser:
    """Recursive descent over one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def parse(self) -> tuple[Node, ...]:
        """Parse the whole text."""
        elements = self._elements(depth=0)
        if self.at < len(self.text):
            found = self.text[self.at]
            message = (
                "')' without a matching '('"
                if found == ")"
                else f"expected ',' or the end of the pipeline, got {found!r}"
            )
            raise self._error(message)
        return elements

    def _error(self, message: str, column: int | None = None) -> PipelineError:
        return PipelineError(self.text, self.at if column is None else column, message)

    def _peek(self) -> str:
        """Skip white space and return the next character, or ''."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def _elements(self, depth: int) -> tuple[Node, ...]:
        if depth > MAX_DEPTH:
            raise self._error(f"expected at most {MAX_DEPTH} nested anchors")
        if self._peek() in ("", ")"):
            return ()
        elements = [self._element(depth)]
        while self._peek() == ",":
            self.at += 1
            elements.append(self._element(depth))
        return tuple(elements)

    def _element(self, depth: int) -> Node:
        found = self._peek()
        match = _NAME.match(self.text, self.at)
        if match is None:
            got = repr(found) if found else "the end of the pipeline"
            raise self._error(f"expected the name of a pass or an anchor, got {got}")
        column, self.at = self.at, match.end()
        opening = self._peek()
        if opening == "(":
            return AnchorNode(match[0], self._nested(depth), column)
        if opening == "{":
            return PassNode(match[0], self._options(), column)
        return PassNode(match[0], (), column)

    def _nested(self, depth: int) -> tuple[Node, ...]:
        opened = self.at
        self.at += 1
        children = self._elements(depth + 1)
        if self._peek() == "":
            raise self._error("'(' is never closed", opened)
        if self.text[self.at] != ")":
            raise self._error(f"expected ',' or ')', got {self.text[self.at]!r}")
        self.at += 1
        return children

    def _options(self) -> tuple[PassOption, ...]:
        start, end = self.at + 1, self._closing_brace()
        self.at = end + 1
        options = []
        for first, last in _words(self.text, start, end):
            word = self.text[first:last]
            name, equals, value = word.partition("=")
            if _OPTION_NAME.fullmatch(name) is None:
                raise self._error(f"expected an option as name=value, got {word!r}", first)
            options.append(PassOption(name, value if equals else None, first))
        return tuple(options)

    def _closing_brace(self) -> int:
        """Return the index of the brace that closes the one at `self.at`."""
        stack: list[int] = []
        for index, char in _outside_quotes(self.text, self.at, len(self.text)):
            if char in _CLOSING:
                stack.append(index)
            elif char in "})]":
                if _CLOSING[self.text[stack[-1]]] != char:
                    raise self._error(f"{self.text[stack[-1]]!r} is closed by {char!r}", index)
                stack.pop()
                if not stack:
                    return index
        raise self._error(f"{self.text[stack[-1]]!r} is never closed", stack[-1])


def _outside_quotes(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield characters of text[start:end] outside '...' and "..."; open quotes are characters."""
    index = start
    while index < end:
        char = text[index]
        close = text.find(char, index + 1, end) if char in "'\"" else -1
        if close >= 0:
            index = close
        else:
            yield index, char
        index += 1


def _words(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of the words of text[start:end], split at spaces outside brackets, quotes."""
    depth, word = 0, None
    spaces = set()
    for index, char in _outside_quotes(text, start, end):
        depth += (char in _CLOSING) - (char in "})]")
        if depth == 0 and char.isspace():
            spaces.add(index)
    for index in range(start, end):
        if index in spaces:
            if word is not None:
                yield word, index
            word = None
        elif word is None:
            word = index
    if word is not None:
        yield word, end


# A reproducer is a module and the pipeline that failed on it, in mlir-opt's form: ``pyc-opt
# --run-reproducer`` reads it back, and mlir-opt where no PyC pass is in it.

_RESOURCES = re.compile(r"^[ \t]*\{-#.*?#-\}", re.S | re.M)
_PIPELINE = re.compile(r'mlir_reproducer\s*:\s*\{[^{}]*?pipeline\s*:\s*"((?:[^"\\]|\\.)*)"', re.S)
_VERIFY = re.compile(r"mlir_reproducer\s*:\s*\{.*?verify_each\s*:\s*(true|false)", re.S)
_ESCAPE = re.compile(r'\\(n|t|\\|"|[0-9A-Fa-f]{2})')


@dataclass(frozen=True)
class Reproducer:
    """The request of a reproducer: the pipeline's text, and whether to verify between passes."""

    pipeline: str
    verify_each: bool = True


def write_reproducer(module: str, wanted: Reproducer, command: str) -> str:
    """Write a reproducer: `module` unchanged, then the pipeline.

    `command` is the command line that failed, for people.
    """
    verify = "true" if wanted.verify_each else "false"
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    quoted = "".join(escapes.get(c, c) for c in wanted.pipeline)
    return (
        f"{module.rstrip()}\n\n// configuration: {' '.join(command.split())}\n"
        "{-#\n  external_resources: {\n    mlir_reproducer: {\n"
        f'      pipeline: "{quoted}",\n'
        f"      disable_threading: true,\n      verify_each: {verify}\n"
        "    }\n  }\n#-}\n"
    )


def read_reproducer(text: str) -> Reproducer | None:
    """Read the last reproducer in `text`; None when it holds none."""
    text = "\n".join(_RESOURCES.findall(text))
    pipelines = _PIPELINE.findall(text)
    if not pipelines:
        return None
    verify = _VERIFY.findall(text)
    named = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}

    def plain(match: re.Match[str]) -> str:
        return named.get(match[1]) or chr(int(match[1], 16))

    return Reproducer(_ESCAPE.sub(plain, pipelines[-1]), verify[-1:] != ["false"])
