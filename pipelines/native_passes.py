"""What the wheel says about its own passes: anchors, options, defaults, and why it refuses one.

Nothing is written down here: parsing a pass and printing it back spells its options out. Only
the names, and the options that the printed form omits, come from `native_names`.
"""

import re
from dataclasses import dataclass

from pyc_mlir.dialects.bindings import ir, passmanager
from pyc_mlir.pipelines.native_names import UNPRINTED_OPTIONS
from pyc_mlir.pipelines.pipeline_text import ANY, PassNode, parse_pipeline

_RESTRICTED = re.compile(r"restricted to '([\w.]+)'")
_NO_OPTION = re.compile(r"no such option (\S+)")


@dataclass(frozen=True)
class NativePass:
    """A pass of the wheel: the op that it runs on (``any`` for all) and its options.

    `options` maps each name to the text of its default; lists default to ''.
    """

    name: str
    anchor: str
    options: dict[str, str]


@dataclass(frozen=True)
class Refusal:
    """Why the wheel refuses a pass: its words, and what could be read from them."""

    text: str
    anchor: str | None = None
    option: str | None = None


def refusal(text: str, context: ir.Context) -> Refusal | None:
    """What the wheel has against the pipeline `text`; None when it accepts it.

    The wheel may also write a line to the process's standard error.
    """
    try:
        passmanager.PassManager.parse(text, context)
    except ValueError as error:
        words = " ".join(str(error).split("\nfailed to add")[0].split())
        anchor = _RESTRICTED.search(words)
        option = _NO_OPTION.search(words)
        return Refusal(words, anchor and anchor[1], option and option[1])
    return None


def describe(name: str, context: ir.Context) -> NativePass | None:
    """What the wheel says about the pass `name`; None when it has no such pass."""
    anchor, problem = ANY, refusal(f"{ANY}({name})", context)
    if problem is not None:
        if problem.anchor is None:
            return None
        anchor = problem.anchor
    printed = str(passmanager.PassManager.parse(f"{anchor}({name})", context))
    options = dict.fromkeys(UNPRINTED_OPTIONS.get(name, ()), "")
    match parse_pipeline(printed, root=anchor).root.children:
        case (PassNode(name=only) as node,) if only == name:
            options |= {o.name: o.value or "" for o in node.options}
    return NativePass(name, anchor, dict(sorted(options.items())))
