"""Short tables in HTML, which notebooks show for objects with `_repr_html_`."""

from collections.abc import Mapping
from html import escape


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """A table of two columns under a title; all text is escaped."""
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{body}</table>"
