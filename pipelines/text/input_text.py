"""Facts about a tool's input, which need no MLIR: bytecode or text, its parts, patterns and bounds.

The parser of MLIR and much that walks its results recurse, and an attribute that is named may be
used many times within another one. So a few lines could overflow the stack, or stand for more text
than a memory holds. `first_excess` finds the place where a bound that the parser survives is
passed; one pass. What it reads as brackets, names and signs is at least what the parser reads, so
that nothing gets past it."""

import re
from dataclasses import dataclass, field

SPLIT_MARKER = "// -----"
BYTECODE_MAGIC = b"ML\xefR"


def is_bytecode(data: bytes) -> bool:
    """Return whether `data` starts as MLIR bytecode does."""
    return data.startswith(BYTECODE_MAGIC)


@dataclass(frozen=True)
class InputPart:
    """A part of a split file: its text, and how many lines stand before it."""

    text: str
    line_offset: int


def split(text: str, marker: str = SPLIT_MARKER) -> list[InputPart]:
    """Split `text` at lines that are exactly `marker`."""
    chunks, current, offset = [], [], 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.rstrip() == marker:
            chunks.append(InputPart("".join(current), offset))
            current, offset = [], number + 1
        else:
            current.append(line)
    return [*chunks, InputPart("".join(current), offset)]


def regex_fault(pattern: str) -> str:
    """Return why a text is no regular expression; "" for one that is."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return ""


# Nested brackets, those of named attributes, types and locations where they are used included. The
# deepest programs of front ends have some dozens; a thread's stack of 8 MiB takes several
# thousands.
MAX_DEPTH = 500
# Digits of one number: an integer of 8,000 bits. Reading it takes the square of them.
MAX_DIGITS = 2400
# Bits of an integer type: each of its numbers takes as many, whatever its digits.
MAX_BITS = 10_000
# Dimensions of a type: much that is done for a type takes the square of them.
MAX_RANK = 2048
# Characters of all named attributes, types and locations, written out wherever they are used; or
# this many times the text, if that is more. Locations of programs that were inlined ten times
# over have ten times their text.
MAX_EXPANDED, EXPANSION = 1 << 28, 64

_LONG = rf"\d{{{MAX_DIGITS}}}|0x[0-9a-fA-F]{{{MAX_DIGITS}}}"
# `iN` where it is no part of a name, also behind the sizes of a shape.
_WIDE = (
    rf"""(?:(?<![\w%@#!.$^"\-])|(?<=[\d?]x))[su]?i0*[1-9]\d{{{len(str(MAX_BITS)) - 1},}}(?!\w)"""
)
_RANKED = rf"(?<![\dx?])(?:(?:\d++|\?)x){{{MAX_RANK}}}"
_SIGNS = r"-(?:(?:\s|//[^\n]*\n)*-)+"
# Brackets with nothing in them that counts, as of nearly every type, are one token.
_LEAF = r"""[({\[<][^({\[<)}\]>"#!/\-]*[)}\]>]"""
_QUIET = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|//[^\n]*'
_NAME = r"[#!][\w$.\-]+"
_TOKEN = re.compile("|".join((_QUIET, _SIGNS, r"->|[<>]=", _LEAF, r"[({\[<]|[)}\]>]", _NAME)))
# What one token alone may pass, and what is expected of it.
_SINGLE = (
    (_LONG, f"numbers of fewer than {MAX_DIGITS} digits"),
    (_WIDE, f"integer types of fewer than {MAX_BITS} bits"),
    (_RANKED, f"types of fewer than {MAX_RANK} dimensions"),
)
_NAMES = re.compile(rf"{_NAME}\s*(?:=|//)")
_DEFINES = re.compile(r"(?:\s|//[^\n]*\n)*=(?!=)")


@dataclass(frozen=True)
class Excess:
    """The place where a bound is passed (an index into the text), and what was expected there."""

    index: int
    message: str


@dataclass
class _Named:
    """An attribute, a type or a location under a name: where its text begins, what it holds."""

    begin: int
    base: int
    depth: int = 0
    inner: int = 0


@dataclass
class _Scan:
    """The state of one pass: depth here, and what the names that ended so far stand for."""

    text: str
    depth: int = 0
    expanded: int = 0
    current: tuple[str, _Named] | None = None
    depths: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def token(self, token: str, start: int, end: int) -> str:
        """Take the next token; what is wrong with it, or an empty string."""
        first = token[0]
        if first in "({[<" and token[-1] != "=":
            return self._deeper(1, stays=len(token) == 1)
        if first in ")}]>":
            # Not below an end that comes too early: the parser will refuse that one.
            self.depth = max(self.depth - (len(token) == 1), 0)
        elif first in "#!":
            return self._name(token, start, end)
        elif first == "-":
            many = token.count("-") > MAX_DEPTH
            return f"expected at most {MAX_DEPTH} signs of a number" if many else ""
        return ""

    def _deeper(self, levels: int, stays: bool = False) -> str:
        reached = self.depth + levels
        if stays:
            self.depth = reached
        if self.current is not None:
            named = self.current[1]
            named.depth = max(named.depth, reached - named.base)
        return f"expected at most {MAX_DEPTH} nested brackets" if reached > MAX_DEPTH else ""

    def _name(self, name: str, start: int, end: int) -> str:
        if _DEFINES.match(self.text, end):
            self._finish(start)
            self.current = name, _Named(end, self.depth)
            return ""
        if name not in self.depths:
            return ""
        size = self.sizes[name]
        self.expanded += size
        if self.current is not None:
            self.current[1].inner += size
        if self.expanded > max(MAX_EXPANDED, EXPANSION * len(self.text)):
            return f"expected at most {MAX_EXPANDED} characters with all names written out"
        return self._deeper(self.depths[name] + 1)

    def _finish(self, end: int) -> None:
        """Enter what was being read. Names that are given twice stand for the larger one."""
        if self.current is None:
            return
        name, named = self.current
        self.depths[name] = max(named.depth, self.depths.get(name, 0))
        self.sizes[name] = max(end - named.begin + named.inner, self.sizes.get(name, 0))


def first_excess(text: str) -> Excess | None:
    """Return the first place where a bound is passed, if there is one."""
    for single, expected in _SINGLE:
        if re.search(single, text):
            for match in re.finditer(f"({single})|{_QUIET}", text):
                if match[1]:
                    return Excess(match.start(), f"expected {expected}")
    if not (
        (sum(map(text.count, "({[<")) > MAX_DEPTH or text.count("-") > MAX_DEPTH)
        or _NAMES.search(text)
    ):
        return None
    scan = _Scan(text)
    for match in _TOKEN.finditer(text):
        wrong = scan.token(match[0], match.start(), match.end())
        if wrong:
            return Excess(match.start(), wrong)
    return None
