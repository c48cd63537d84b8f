"""Two generated pages of docs/: passes and errors."""

import inspect
import sys
from collections.abc import Iterator

from pyc_mlir.compilation.lower import TO_LINALG
from pyc_mlir.compilation.options import HIGH_LEVEL
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.pipelines.driver.base import Pass, options_of
from pyc_mlir.pipelines.driver.options import describe, option_types, write_value
from pyc_mlir.pipelines.driver.registry import BUILT_IN, ENTRY_POINT_GROUP, NATIVE_PASSES, PASSES
from pyc_mlir.tools.docs.templates import filled


def passes_page() -> str:
    """docs/passes.md."""
    native = len(NATIVE_PASSES)
    head = filled("passes", high=HIGH_LEVEL, low=TO_LINALG, native=native, group=ENTRY_POINT_GROUP)
    return "\n".join([head, *("\n".join(_pass(PASSES[name])) for name in BUILT_IN)])


def _pass(pass_class: type[Pass]) -> Iterator[str]:
    module = sys.modules[pass_class.__module__]
    yield from (f"## {pass_class.name}", "", inspect.getdoc(pass_class) or "", "")
    yield from (inspect.getdoc(module) or "", "")
    options = options_of(pass_class)
    if not options:
        yield from ("No options.", "")
        return
    kinds = option_types(pass_class)
    yield from ("| option | takes | default | meaning |", "|---|---|---|---|")
    for field, name in options:
        default = f"`{write_value(field.default)}`"
        cells = (f"`{name}`", describe(kinds[field.name]), default, field.metadata["help"])
        yield f"| {' | '.join(cells)} |"
    yield ""


def errors_page() -> str:
    """docs/errors.md."""
    rows = [
        f"| `{name}` | {r.meaning} | {r.cause} | {r.remedy} | {r.example} |"
        for name, r in ((c.name, c.value) for c in ReasonCode)
    ]
    return filled("errors", rows="\n".join(rows))
