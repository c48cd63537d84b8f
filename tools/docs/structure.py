"""The structure of the sources as numbers: files, folders, functions, import cycles.

    python tools/docs/structure.py BEFORE AFTER     a Markdown table of two checkouts

docs/design-notes/house.md shows its table. Sources are read as syntax trees, nothing is imported
but for `--run`, which compiles an ONNX model of one Relu in each checkout and counts the files of
ours whose functions run.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

# A folder and the package that it installs as.
LAYERS = {
    "dialects": "pyc_mlir.dialects",
    "pipelines": "pyc_mlir.pipelines",
    "pyc_mlir": "pyc_mlir",
    "tools": "pyc_mlir.tools",
}
# An option whose name means nothing else, and the flag of it.
OPTION = re.compile(r"\balso[_-]modes?\b")
# Module-level constants of predicted seconds.
COST = re.compile(
    r"_?([A-Z]+_)*(FLOPS|OF_ROOF|(DISPATCH|ALONE|WAKING)_SECONDS|DISPATCHES)(_[A-Z]+)*"
)
_COMPILE = """
import sys
from onnx import TensorProto, helper
from pyc_mlir import compile
node = helper.make_node("Relu", ["x"], ["y"])
x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xy")
graph = helper.make_graph([node], "g", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
seen = set()
def called(frame, event, _):
    if event == "call" and frame.f_code.co_name != "<module>":
        seen.add(frame.f_code.co_filename)
sys.setprofile(called)
compile(model.SerializeToString())
sys.setprofile(None)
print(len({name for name in seen if name.startswith(sys.argv[1])}))
"""
Edges = Mapping[str, set[str]]


@dataclass(frozen=True)
class Checkout:
    """The sources under one root."""

    root: Path

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Our modules by dotted name."""
        found = {}
        for layer, package in LAYERS.items():
            for path in sorted((self.root / layer).rglob("*.py")):
                parts = path.relative_to(self.root / layer).with_suffix("").parts
                name = ".".join([package, *(p for p in parts if p != "__init__")])
                found[name] = ast.parse(path.read_text())
                self.paths[name] = path
        return found

    @cached_property
    def paths(self) -> dict[str, Path]:
        """The file of each module; filled with `trees`."""
        return {}

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of each file that holds code."""
        files = {str(self.paths[name].relative_to(self.root)): name for name in self.trees}
        return {file: self.paths[name].read_text() for file, name in files.items()}

    @cached_property
    def lines(self) -> list[int]:
        """Lines of each file but those that only mark a package."""
        return [n for f, t in self.texts.items() if (n := t.count("\n")) and "__init__" not in f]

    @cached_property
    def functions(self) -> list[int]:
        """Lines of each function."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = (n for tree in self.trees.values() for n in ast.walk(tree) if isinstance(n, kinds))
        return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]

    @cached_property
    def modules_by_folder(self) -> Counter[str]:
        """Loose modules of each folder."""
        files = (file for file in self.texts if not file.endswith("__init__.py"))
        return Counter(file.rpartition("/")[0] for file in files)

    @cached_property
    def edges(self) -> dict[str, set[str]]:
        """Which of our modules each module imports, lazily too, but not for type checkers."""
        return {
            name: {own for n in _imported(tree) if (own := self._own(n)) not in (None, name)}
            for name, tree in self.trees.items()
        }  # type: ignore[return-value]

    @cached_property
    def folder_edges(self) -> dict[str, set[str]]:
        """The same for folders; packages' own files are left out."""
        loose = {n: str(p.parent) for n, p in self.paths.items() if p.name != "__init__.py"}
        found: dict[str, set[str]] = {folder: set() for folder in loose.values()}
        for name, targets in self.edges.items():
            if name in loose:
                found[loose[name]] |= {loose[t] for t in targets if t in loose} - {loose[name]}
        return found

    def _own(self, name: str) -> str | None:
        while name not in self.trees:
            name, _, last = name.rpartition(".")
            if not last:
                return None
        return name

    def spelled(self) -> int:
        """Files that spell one option (`also_modes`), in code or in a flag."""
        return sum(OPTION.search(text) is not None for text in self.texts.values())

    def cost_homes(self) -> int:
        """Files that define a constant of predicted seconds."""
        return sum(any(COST.fullmatch(n) for n in _constants(t)) for t in self.trees.values())

    def files_run(self) -> int:
        """Files whose functions run in the compile of an ONNX model of one Relu."""
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "pyc_mlir"
            package.mkdir()
            for part in (self.root / "pyc_mlir").iterdir():
                (package / part.name).symlink_to(part.resolve())
            for layer in ("dialects", "pipelines", "tools"):
                (package / layer).symlink_to((self.root / layer).resolve())
            line = [sys.executable, "-c", _COMPILE, folder]
            environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
            ran = subprocess.run(
                line, cwd=folder, env=environment, capture_output=True, text=True, check=True
            )
        return int(ran.stdout.split()[-1])


def _imported(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from _imported(child)


def _constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def cycles(edges: Edges) -> list[set[str]]:
    """The strongly connected components of more than one node."""
    reach = {name: _reached(edges, name) for name in edges}
    found: list[set[str]] = []
    for name in edges:
        group = {other for other in reach[name] if name in reach[other]} | {name}
        if len(group) > 1 and group not in found:
            found.append(group)
    return found


def _reached(edges: Edges, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def _sizes(found: Sequence[set[str]]) -> str:
    """``2, of 9 and 4``, or 0."""
    sizes = sorted(map(len, found), reverse=True)
    return f"{len(sizes)}, of {' and '.join(map(str, sizes))}" if sizes else "0"


ROWS: Mapping[str, Callable[[Checkout], object]] = {
    "files with code": lambda c: len(c.lines),
    "lines of them": lambda c: f"{sum(c.lines):,}",
    "folders with modules": lambda c: len(c.modules_by_folder),
    "most loose modules in a folder": lambda c: max(c.modules_by_folder.values()),
    "median of loose modules in a folder": lambda c: f"{median(c.modules_by_folder.values()):g}",
    "longest file, lines": lambda c: max(c.lines),
    "median file, lines": lambda c: f"{median(c.lines):g}",
    "functions": lambda c: f"{len(c.functions):,}",
    "longest function, lines": lambda c: max(c.functions),
    "median function, lines": lambda c: f"{median(c.functions):g}",
    "import cycles of files": lambda c: _sizes(cycles(c.edges)),
    "import cycles of folders": lambda c: _sizes(cycles(c.folder_edges)),
    "files that spell the option `also_modes`": Checkout.spelled,
    "files that define constants of predicted seconds": Checkout.cost_homes,
}
RUN = "files of ours that run when an ONNX model of one Relu is compiled"


def table(checkouts: Sequence[Checkout], titles: Sequence[str], run: bool) -> str:
    """One row a number, one column a checkout."""
    rows = dict(ROWS) | ({RUN: Checkout.files_run} if run else {})
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    lines += [f"| {n} | {' | '.join(str(row(c)) for c in checkouts)} |" for n, row in rows.items()]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser("structure", description="The structure of two checkouts.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--run", action="store_true", help="also compile a model in each")
    options = parser.parse_args(argv)
    checkouts = [Checkout(options.before.resolve()), Checkout(options.after.resolve())]
    print(table(checkouts, ("before", "after"), options.run), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
