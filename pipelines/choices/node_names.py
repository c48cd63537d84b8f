"""Names of a model's nodes for the decisions of its program, beside the program.

Equal programs have equal bytes, so an artifact holds no names. They lie in a file of their own,
``model.vmfb.names.json`` beside ``model.vmfb``, and beside an entry of the cache. They are for
people: a program without them, or with those of another program, is read without names.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.pipelines.choices.choices import Decision

_SUFFIX = ".names.json"


@dataclass(frozen=True)
class NodeNames:
    """The names of nodes by the site of a decision (``pass:op-id``), of one program.

    They are written as `Site.without_paths` has them. model: the name of the model, if it is known.
    """

    graph_id: str
    sites: Mapping[str, str]
    model: str = ""

    @staticmethod
    def of(graph_id: str | None, decisions: Iterable[Decision]) -> "NodeNames":
        """Collect the names that decisions have."""
        plain = (d.site.without_paths for d in decisions if d.site.location)
        return NodeNames(graph_id or "", {s.key: s.location for s in plain if s.location})

    def given(self, graph_id: str | None, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """Return the decisions with these names, unless they are those of another program."""
        if self.graph_id != (graph_id or ""):
            return tuple(decisions)
        return tuple(
            replace(d, site=replace(d.site, location=d.site.location or self.sites[d.site.key]))
            if d.site.key in self.sites
            else d
            for d in decisions
        )

    def to_bytes(self) -> bytes:
        """Return the names as JSON."""
        return f"{json.dumps(to_data(self, 'names'), ensure_ascii=False, indent=0)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes | None) -> "NodeNames":
        """Read what `to_bytes` made; no names in what is none."""
        try:
            return from_data(NodeNames, parse_json(data or b""), "names")
        except ValueError:
            return NodeNames("", {})


def beside(path: str | Path) -> Path:
    """Return the file of the names of the program at `path`."""
    return Path(f"{path}{_SUFFIX}")


def read_beside(path: str | Path) -> NodeNames:
    """Read the names beside a program; none where there is no such file."""
    try:
        return NodeNames.from_bytes(bytes(read_file(beside(path), "names")))
    except PycError:
        return NodeNames("", {})


def write_beside(path: str | Path, names: NodeNames) -> None:
    """Write the names beside the file of a program, if there are any.

    Raises PycError (FILE_ACCESS).
    """
    if names.sites and Path(path).is_file():
        write_file(beside(path), names.to_bytes(), "a file for the names of the model's nodes")
