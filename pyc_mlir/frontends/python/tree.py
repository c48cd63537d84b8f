"""Arguments and results as trees of tuples, lists and dicts: flatten, name the leaves, rebuild."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each leaf with its path: dict keys and positions joined by dots, in the tree's order."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(tree, (tuple, list)):
        for i, value in enumerate(tree):
            yield from leaves(value, (*path, str(i)))
    else:
        yield ".".join(path), tree


def rebuild(tree: Any, values: Sequence[Any]) -> Any:
    """A tree like `tree` (named tuples included) with `values` in place of its leaves, in order."""
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `function` applied to each leaf."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        mapped = [map_leaves(function, value) for value in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else type(tree)(mapped)
    return function(tree)


def result_names(tree: Any) -> list[str]:
    """Names for a function's results: the paths of their leaves; ``out`` where a path has none.

    ``out`` for a single array, ``out0`` and ``out1`` for a pair, ``logits`` for a dict's entry.
    """
    names = [path for path, _ in leaves(tree)]
    return ["out" + name if not name or name[0].isdigit() else name for name in names]


def check_leaf(value: Any, allowed: Callable[[Any], bool], where: str, expected: str) -> None:
    """Raise PycError (BAD_ARGUMENT) for a leaf that is none of `expected`."""
    if not allowed(value):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{where}: expected {expected}, got {type(value).__name__} {value!r:.60}",
        )
