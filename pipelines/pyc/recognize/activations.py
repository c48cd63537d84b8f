"""Guesses of activations: gelu by erf or tanh, silu, sigmoid, relu."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyc_mlir.pipelines.pyc.recognize.anchors import arguments, followers
from pyc_mlir.pipelines.pyc.recognize.candidates import Candidate
from pyc_mlir.pipelines.pyc.terms.nodes import MOVED, TermGraph, TermNode

_FUNCTIONS = {
    "erf": (("gelu", {"approximate": "none"}),),
    "tanh": (("gelu", {"approximate": "tanh"}),),
    "exp": (("silu", {}), ("sigmoid", {}), ("gelu", {"approximate": "tanh"})),
    "sigmoid": (("silu", {}), ("gelu", {"approximate": "tanh"})),
    "maximum": (("relu", {}),),
}
_ARGUMENTS = 6


def activations(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """The largest composites around a function of one value first."""
    kinds = _FUNCTIONS.get(anchor.name, ())
    if not kinds:
        return
    if anchor.name == "maximum":
        x = next((o for o in anchor.operands if o.number is None), None)
        if x is not None and 0.0 in [o.number for o in anchor.operands]:
            yield _candidate("relu", anchor, x, {})
        return
    (argument,) = anchor.operands
    found = [x for _, x in zip(range(_ARGUMENTS), arguments(argument), strict=False)]
    forks = {id(x) for x in found if _forks(x, graph)}
    for root in followers(anchor, graph):
        for x in found:
            if root.type.shape == x.type.shape and root.type.dtype == x.type.dtype:
                for name, params in kinds:
                    if name == "sigmoid" or id(x) in forks:
                        yield _candidate(name, root, x, params)


def _forks(x: TermNode, graph: TermGraph) -> bool:
    """Whether several ops read x, as in x * sigmoid(x), perhaps behind moves and conversions.

    Without this look, a long chain of activations would be compared at each of its ops.
    """
    readers = graph.of(x)
    while len(readers) == 1 and readers[0].has(MOVED):
        readers = graph.of(readers[0])
    return len(readers) > 1


def _candidate(name: str, root: TermNode, x: TermNode, params: dict[str, Any]) -> Candidate:
    return Candidate(name, root, (x,), partial(_build, name, params))


def _build(name: str, params: dict[str, Any], b: Any, x: Any) -> Any:
    return getattr(b, name)(x, **params)
