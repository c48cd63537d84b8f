"""`pyc-explain --diff A B` as text: differences between two compiles, with their reasons."""

import json
from typing import Any

from pyc_mlir.debug.diff import ChoiceDifference, ProgramDifference
from pyc_mlir.tools.explain.facts import size

_SHOWN = 100


def text(found: ProgramDifference, every: bool = False) -> str:
    """Write conditions, choices, sizes; with `every` also choices that stayed, on new grounds."""
    if found.is_empty:
        return f"no difference: {found.same} equal decisions\n"
    parts = [
        _section(
            "compiled with",
            "".join(f"  {name}: {_short(a)} -> {_short(b)}\n" for name, a, b in found.conditions),
        ),
        _section(
            "bytes",
            "".join(f"  {name}: {_bytes(a)} -> {_bytes(b)}\n" for name, a, b in found.sizes),
        ),
        _section("choices that differ", "".join(map(_change, found.changes))),
    ]
    if every:
        parts.append(
            _section("the same choice on other grounds", "".join(map(_change, found.restated)))
        )
    rest = f"{found.same} choices are the same"
    restated = f", {len(found.restated)} of them on other grounds" if found.restated else ""
    more = "; --decisions shows them" if found.restated and not every else ""
    return "\n".join([*(p for p in parts if p), f"{rest}{restated}{more}\n"])


def _section(title: str, text: str) -> str:
    return f"{title}\n{text}" if text else ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _bytes(value: Any) -> str:
    return size(value) if isinstance(value, int) else "at run time"


def _change(change: ChoiceDifference) -> str:
    before, after = (d.chosen if d else "not decided" for d in (change.before, change.after))
    either = change.after or change.before
    where = f"  at {either.site.location}" if either and either.site.location else ""
    head = f"  {change.site}{where}\n    {before} -> {after}\n"
    return head + "".join(f"      {text}\n" for text in change.why)
