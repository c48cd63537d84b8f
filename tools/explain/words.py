"""The explanation in words: a headline, decisions by layer of the model, knobs folded.

Nothing here knows a terminal or a browser.
"""

import re
from collections.abc import Hashable, Sequence

from pyc_mlir.dialects.names import is_op_id
from pyc_mlir.pipelines.choices.choices import Decision, Site
from pyc_mlir.pipelines.choices.log import Listed
from pyc_mlir.profile.dispatches import MOST_TITLED, few
from pyc_mlir.tools.explain.facts import ExplainedProgram, size

WHOLE, UNNAMED = "the whole program", "operations without names"
NO_NAMES = (
    "names of the model's nodes lie beside a program (PROGRAM.vmfb.names.json), in one that was "
    "compiled with --node-names, and in the log of its compile: give it by --log"
)
# What is decided in a pass, for people who do not know the passes.
_TOPICS = {
    "arena-entry": "entry for callers with memory of their own",
    "budget": "way to keep the memory budget",
    "iree-fusion": "fusion by IREE",
    "plan-memory": "plan of the working memory",
    "pyc-chunk": "computing in parts",
    "pyc-fuse": "operations in one kernel",
    "pyc-layout": "order of dimensions in memory",
    "pyc-recognize": "operations that are spelled out",
    "pyc-select-kernels": "code",
}
_NUMBERED = re.compile(r"(^|[._-])\d+$|\D\d+$")
_KNOBS = re.compile(r"(\w+)\((\w+=.*)\)")
_KNOBS_OF_CHOICE = re.compile(r"(\[.*\])?(#\d+)?$")
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


def equal(decisions: Sequence[Decision]) -> dict[Site, list[Decision]]:
    """Group decisions between the same alternatives at the same costs, by the first one's site."""
    groups: dict[Hashable, list[Decision]] = {}
    for d in decisions:
        offers = tuple((a.name, a.cost) for a in d.alternatives)
        of_all = "" if is_op_id(d.site.op_id) else d.site.op_id
        key = (d.site.pass_name, of_all, d.chosen, d.decided_by, offers)
        groups.setdefault(key, []).append(d)
    return {group[0].site: group for group in groups.values()}


def whose(same: Sequence[Decision]) -> str:
    """Return the nodes that equal decisions are about; ids where there are no names."""
    nodes = list(dict.fromkeys(name for d in same for name in d.site.nodes))
    ids = [d.site.op_id for d in same if is_op_id(d.site.op_id)]
    times = f"{len(same)} x " if len(same) > 1 else ""
    return times + (few(nodes, ", ", 2) or few(ids, ", ", 1)) if nodes or ids else ""


def topic(decision: Listed) -> str:
    """Return what a decision is about, in words."""
    return _TOPICS.get(decision.site.pass_name, decision.site.pass_name.removeprefix("pyc-"))


def shortened(choice: str) -> str:
    """Return the name of an alternative with at most three of the operations that it joins."""
    kind, colon, joined = choice.partition(":")
    ops = joined.split("+")
    tail = _KNOBS_OF_CHOICE.search(ops[-1])
    suffix = tail[0] if tail and len(ops) > MOST_TITLED else ""
    return f"{kind}{colon}{few(ops, '+', MOST_TITLED)}{suffix}" if colon else choice


def purpose(subject: ExplainedProgram) -> str:
    """Describe the program to somebody who has never met PyC."""
    signature, target = subject.artifact.signature, subject.artifact.manifest.target
    given, taken = (
        few([a.name for a in arguments], ", ", MOST_TITLED) or "nothing"
        for arguments in (signature.outputs, signature.inputs)
    )
    parts = [f"A model, compiled ahead of time for {target}: it computes {given} from {taken}."]
    if subject.profile is not None:
        rows = [row for row in subject.profile.rows if row.is_dispatch]
        kernels = sum(row.is_kernel for row in rows)
        parts.append(
            f"A call runs {len(rows)} pieces of code one after the other: {kernels} kernels that "
            f"PyC generated and {len(rows) - kernels} that IREE, the compiler below it, generated."
        )
    return " ".join(parts)


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
        ends = {name: sizes.signature.ranges.get(name, (8, 8)) for name in missing}
        flags = " ".join(f"--size {n}={min(max(low, 8), high)}" for n, (low, high) in ends.items())
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
