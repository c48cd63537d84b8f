"""The explanation in words: a headline, decisions by layer of the model, knobs folded.

Nothing here knows a terminal or a browser.
"""

import re
from collections.abc import Sequence

from pyc_mlir.dialects.names import is_op_id
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.log import Listed
from pyc_mlir.tools.explain.facts import ExplainedProgram, size

WHOLE, UNNAMED = "the whole program", "ops without names"
NO_NAMES = (
    "names of the model's nodes: compile with --node-names, or give the log of the compile by --log"
)
_NUMBERED = re.compile(r"(^|[._-])\d+$|\D\d+$")
_KNOBS = re.compile(r"(\w+)\((\w+=.*)\)")
_LONGEST = 72


def layer_of(decision: Decision) -> str:
    """Return the layer that a decision is about.

    Of a node's path the part up to the first number: ``/encoder/layer.0`` of
    ``/encoder/layer.0/attention/MatMul``; without one, the folder of the path, or the node itself.
    """
    if not is_op_id(decision.site.op_id):  # a pass that decides on all of a program
        return WHOLE
    if not decision.site.nodes:
        return UNNAMED
    *parts, leaf = decision.site.nodes[0].split("/")
    numbered = (n for n, part in enumerate(parts, 1) if _NUMBERED.search(part))
    return "/".join(parts[: next(numbered, len(parts))]) or leaf


def by_layer(decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
    """Group decisions by layer, in the order in which these come first; the whole comes last."""
    found: dict[str, list[Decision]] = {}
    for decision in decisions:
        found.setdefault(layer_of(decision), []).append(decision)
    whole = found.pop(WHOLE, None)
    return found if whole is None else {**found, WHOLE: whole}


def place_of(decision: Listed) -> str:
    """Return the places in the source; empty if they only repeat the names of nodes."""
    site = decision.site
    return "" if site.location == site.without_paths.location else site.location


def folded(reason: str) -> tuple[str, str]:
    """Return a reason in short, and the whole if the short one leaves knobs out (else empty)."""
    match = _KNOBS.fullmatch(reason)
    if match is None or len(reason) <= _LONGEST:
        return reason, ""
    knobs = len(re.findall(r"(?:^|, )\w+=", _top_level(match[2])))
    return f"{match[1]} with {knobs} knobs", reason


def _top_level(text: str) -> str:
    """Return the text without bracketed parts."""
    before = ""
    while before != text:
        before, text = text, re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", text)
    return text


def headline(subject: ExplainedProgram) -> str:
    """Return what matters most, as one sentence: the memory of a call, all parts of it."""
    sizes = subject.sizes
    mine, theirs = subject.memory()
    if mine is None:
        missing = [name for name in sizes.names if name not in sizes.chosen]
        if not missing:
            return "the memory of a call is known when it runs"
        flags = " ".join(f"--size {name}=8" for name in missing)
        return (
            f"the memory of a call depends on {', '.join(missing)}; {flags} shows it for one size"
        )
    at = f" for {sizes}" if sizes.chosen else " for the largest sizes" if sizes.names else ""
    head = f"a call needs {size(mine)} of memory{at}"
    if theirs is None:
        return head
    share = round(100 * (1 - mine / max(theirs, 1)))
    if share == 0:
        return f"{head}, as much as by IREE's plan{'' if mine == theirs else ' within 1 %'}"
    return f"{head}, {abs(share)} % {'less' if share > 0 else 'more'} than by IREE's plan"


def unplanned(subject: ExplainedProgram) -> str:
    """Return why a program has no planned region to show."""
    if subject.artifact.memory:
        return "no buffers to plan: each region of this program works in one at most"
    return "IREE planned the memory: the program was compiled with planner mode `iree`"
