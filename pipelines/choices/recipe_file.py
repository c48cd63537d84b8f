"""A recipe as a file: choices of one program with their grounds and what they are expected to take.

    {"kind": "pyc-recipe", "schema": 2, "graph": "871a6d93a65e091e",
     "choices": {"pyc-fuse:matmul.069bab9f29d9eac9": "keep", ...}, "works": {...},
     "by": "explore", "grounds": {"pyc-fuse:...": [{"kind": "estimated-seconds", ...}]},
     "estimate": {"seconds": 8.9e-06, "lo": ..., "hi": ..., "bytes": 65536, "exact": true},
     "evidence": "wisdom@4f1c..."}

Comes in: what a search found. Goes out: canonical JSON: reading and writing it again gives the same
bytes. `compile(recipe="recipe.json")` takes it like a log. The layout is `RecipeFile`'s fields.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.json_input import read_record
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.evidence import Evidence

_BEGINNING = b'"kind": "pyc-recipe"'


@dataclass(frozen=True)
class ExpectedCall:
    """The expected cost of a program by the recipe: seconds of a call with an interval, bytes.

    measured: the part of the seconds that rests on measured rows. exact: whether a compile will
    state these bytes.
    """

    seconds: float
    lo: float
    hi: float
    measured: float = 0.0
    bytes: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class RecipeFile:
    """Choices by site (``pass:op``) for the program `graph`, and by work for programs like it.

    by: who chose. grounds: by site, on what evidence. evidence: the label of the wisdom, or empty.
    """

    kind: ClassVar[str] = "pyc-recipe"
    schema: ClassVar[int] = 2
    graph: str
    choices: Mapping[str, str]
    works: Mapping[str, str] = field(default_factory=dict)
    by: str = "recipe"
    grounds: Mapping[str, tuple[Evidence, ...]] = field(default_factory=dict)
    estimate: ExpectedCall | None = None
    evidence: str = ""

    @property
    def recipe(self) -> Recipe:
        """The recipe for a compile, whose log will repeat who decided and on what grounds."""
        origins = {key: (self.by, self.grounds.get(key, ())) for key in self.choices}
        return Recipe(dict(self.choices), origins, made_for=self.graph, works=dict(self.works))

    def to_bytes(self) -> bytes:
        """Write the file: JSON with sorted keys, one fact a line."""
        data = to_data(self)
        return f"{json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes, where: str = "recipe") -> "RecipeFile":
        """Read what `to_bytes` wrote. Raises PycError (BAD_ARGUMENT), with `where` first."""
        return read_record(RecipeFile, data, where, "a recipe", "make it again")

    @staticmethod
    def load(path: str | Path) -> "RecipeFile":
        """Read a file. Raises PycError: FILE_ACCESS, BAD_ARGUMENT."""
        return RecipeFile.from_bytes(read_file(path, "a recipe"), str(path))


def is_recipe(data: bytes) -> bool:
    """Return whether bytes are such a file, and no log or program."""
    return data.lstrip().startswith(b"{") and _BEGINNING in data
