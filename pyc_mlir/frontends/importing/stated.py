"""Attributes of a node, with a check that its handler read all of them.

A front end hands the attributes, parameters, inner functions and regions of a node to the handler
as a `Stated`, which notes what the handler looks up. `Importer.node` then refuses a node with an
entry that nobody read: passing over it could silently change the result. One table of each front
end lists the entries that change no result, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.importing.errors import unsupported

_SHOWN = 80
# Entries that change no result: name -> why.
Ignored = Mapping[str, str]


class Stated(Mapping[str, Any]):
    """The entries of one node by name; looking one up counts as reading it.

    kind: what messages call an entry. ignored: entries that change no result, with the reason.
    has_no_effect: whether an entry states what holds without it, such as an operator's default.
    """

    def __init__(
        self, entries: Mapping[str, Any], kind: str, ignored: Ignored,
        has_no_effect: Callable[[str, Any], bool] = lambda name, value: False,
    ) -> None:  # fmt: skip
        self._entries = dict(entries)
        self._kind = kind
        self._ignored = ignored
        self._has_no_effect = has_no_effect
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self) -> None:
        """Forget what was read: another handler, or another builder, begins."""
        self._read.clear()

    def require_all_read(self) -> None:
        """Raise PycError (UNSUPPORTED_ATTRIBUTE) for an entry that changes results and that the
        handler did not look up."""
        for name in sorted(self._entries.keys() - self._read - self._ignored.keys()):
            if not self._has_no_effect(name, self._entries[name]):
                raise not_read(self._kind, name, self._entries[name])


def not_read(kind: str, name: str, value: Any) -> PycError:
    """Return the error for an entry that changes results and that no handler reads."""
    shown = " ".join(str(value).split())
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return unsupported(f"{kind} `{name}` is {shown}: PyC computes this operation only without it")
