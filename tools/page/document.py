"""A page as one HTML file: its head with the style, and the blocks that all pages have.

All that a program says is escaped (`pyc_mlir/util/html.py`). Nothing is fetched and nothing runs: a
page looks the same in a browser, a mail, and the viewer of a CI. Jinja2 is no dependency, and would
not make this smaller.
"""

from collections.abc import Sequence
from pathlib import Path

from pyc_mlir.dialects.printable import for_display
from pyc_mlir.util.html import Html, joined, tag

STYLE = Path(__file__).parent / "style.css"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, *content: str) -> str:
    """Write the whole page. Ends in a newline."""
    head = joined(
        Html('<meta charset="utf-8"/>'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        Html('<meta name="color-scheme" content="light dark"/>'),
        tag("title", title),
        tag("style", Html(STYLE.read_text("utf-8"))),
    )
    body = tag("main", *content)
    return for_display(
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
    )


def facts(rows: Sequence[tuple[str, str]]) -> Html:
    """Write names with what they stand for, a line each."""
    return tag("dl", *(tag("div", tag("dt", n), tag("dd", t)) for n, t in rows), class_="facts")


def section(title: str, *content: str, id_: str = "") -> Html:
    """Write a part of the page under its title."""
    return tag("section", tag("h2", title), *content, id=id_)


def figure(title: str, note: str, *content: str) -> Html:
    """Write a picture under its title and what it shows."""
    return tag(
        "figure", tag("h3", title), *([tag("p", note, class_="note")] * bool(note)), *content
    )


def folded(summary: str, *content: str) -> Html:
    """Write what opens at a click."""
    return tag("details", tag("summary", summary), *content)


def wide(*content: str) -> Html:
    """Write what may be wider than the page, and scrolls within it."""
    return tag("div", *content, class_="scroll", tabindex="0")
