"""Prose of generated pages: Markdown with places for what is generated."""

from pathlib import Path

_FOLDER = Path(__file__).with_name("templates")


def filled(page: str, **parts: object) -> str:
    """Return the template of a page with its ``{places}`` filled."""
    return (_FOLDER / f"{page}.md").read_text().format(**parts)
