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

_PASSES = f"""\
# Passes

A PyC pass is a frozen dataclass: its fields are its options, its `run` changes the module and
returns counts. Where all counts are 0 the pass has found nothing to do: the module is not verified
again, and the same pass is left out until another one has changed something. A pass without counts
is taken to have changed the module. All run on `builtin.module`.

`pyc-opt --list-passes` prints this page's tables and the {len(NATIVE_PASSES)} native passes of the
pinned MLIR with their anchors and options.

`pyc_mlir.compile` runs

```
{{high}}
{{low}}
```

and for CPUs `pyc-select-kernels` between the two lines, with the host's own target.

## Pipelines

Passes of both kinds stand in one pipeline, as flags or as text. A native pass runs under its
anchor; consecutive native passes run as one native pass manager. The whole text is checked before
anything runs, and errors point at the column.

```
pyc-opt model.mlir --pyc-canonicalize --pyc-fuse='max-ops=8' --cse
pyc-opt model.mlir --pass-pipeline='builtin.module(pyc-canonicalize,func.func(cse),pyc-fuse)'
pyc-opt model.mlir --pyc-fuse --pyc-log=log.jsonl       # write what was decided
pyc-opt model.mlir --pyc-fuse --pyc-recipe=log.jsonl    # decide the same again
```

A pass of your own takes part in both: register its class with
`pyc_mlir.pipelines.driver.registry.PASSES.register`, or under the entry point group
`{ENTRY_POINT_GROUP}` of an installed package. A compile runs it where the option `passes` names it:
`pyc-compile model.onnx --passes my-pass,default` before PyC's own passes, `default,my-pass` after
them; `--emit imported` shows the module before, `--emit pyc` after all passes.
[The tutorial](tutorial.md) writes one.
"""

_ERRORS = """\
# Errors

Every error that an input can cause is a `pyc_mlir.PycError`. Its text says where, what was
expected, what came and what to do, and ends in the code; `error.code` is the member of
`pyc_mlir.ReasonCode`, `error.message` the text without it. Where they are known apart,
`error.where`, `error.expected`, `error.got` and `error.remedy` are the parts of the message; code
of PyC's own makes errors from these parts: `PycError(code, where=..., expected=..., got=...,
remedy=...)`. Fallbacks, cache misses and switches are no errors: their codes stand in decisions,
events and `Program.stats()`. Codes are added, never renamed; a test provokes each of them.

| code | meaning | cause | remedy | example |
|---|---|---|---|---|
"""


def passes_page() -> str:
    """docs/passes.md."""
    head = _PASSES.format(high=HIGH_LEVEL, low=TO_LINALG)
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
    return _ERRORS + "\n".join(rows) + "\n"
