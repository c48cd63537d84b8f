"""HTML and SVG as text: elements, tables, and the short tables that notebooks show.

Text is escaped where it is written; only `Html`, which `tag` returns, is taken as it is.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape

_VOID = frozenset({"circle", "line", "meta", "path", "rect"})
_NUMBER = re.compile(r"[-+<]?[\d.,]+(e[-+]?\d+)?( ?([num]?s|B|[KMGT]iB|%|x|[kMGT]))?")


class Html(str):
    """The text of elements; any other text is escaped before it becomes a part of one."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: str | float | None) -> Html:
    """Write an element of HTML or SVG.

    Attributes without a value are left out; ``class_`` gives class, ``text_anchor`` text-anchor.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    if not content and name in _VOID:
        return Html(f"<{name}{given}/>")
    return Html(f"<{name}{given}>{joined(*content)}</{name}>")


def joined(*content: str) -> Html:
    """Join elements and texts."""
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in content))


def prose(text: str) -> Html:
    """Write sentences; names in backticks are set as code."""
    parts = enumerate(text.split("`"))
    return joined(*(tag("code", part) if i % 2 else part for i, part in parts))


def _value(value: str | float) -> str:
    """Write an attribute; a pixel has a tenth's precision."""
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], **attributes: str) -> Html:
    """Write a table; columns of numbers stand to the right. A cell may be a whole ``<td>``."""
    columns = list(zip(*rows, strict=True))
    numeric = [any(c) and all(map(_is_numeric, c)) for c in columns]
    left, right = "text-align:left", "text-align:right;white-space:nowrap"
    styles = [right if of_numbers else left for of_numbers in numeric]
    styles += [left] * (len(head) - len(styles))
    heads = [tag("th", text, style=style) for text, style in zip(head, styles, strict=True)]
    body = [tag("tr", *map(_cell, row, styles)) for row in rows]
    return tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), **attributes)


def _is_numeric(cell: str) -> bool:
    return not cell or isinstance(cell, Html) or _NUMBER.fullmatch(cell) is not None


def _cell(text: str, style: str) -> Html:
    return text if isinstance(text, Html) else tag("td", text, style=style)


def facts_table(title: str, rows: Mapping[str, str]) -> Html:
    """Write a table of two columns under a title."""
    left = {"style": "text-align:left"}
    body = (
        tag("tr", tag("th", name, **left), tag("td", text, **left)) for name, text in rows.items()
    )
    return tag("table", tag("caption", title), *body)
