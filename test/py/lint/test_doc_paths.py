"""Files, modules and links that the documents and the docstrings of the sources name exist."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from source_trees import trees

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "pyc_mlir.dialects": "dialects",
    "pyc_mlir.pipelines": "pipelines",
    "pyc_mlir.tools": "tools",
    "pyc_mlir": "pyc_mlir",
}
# Files of a user in examples, and entry point groups, which are no modules.
EXAMPLES = {"FILE.py", "file.py", "judge.py", "model.py"}
GROUPS = {"pyc_mlir.kernels", "pyc_mlir.passes", "pyc_mlir.policies"}
PATH = re.compile(r"[\w./{},*<>$-]*\w\.py\b")
DOTTED = re.compile(r"\bpyc_mlir(?:\.[A-Za-z_]\w*)+")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


@cache
def sources() -> dict[str, ast.Module]:
    """Our Python files by their path from the root."""
    return trees(*dict.fromkeys(PACKAGES.values()), "test", "docs")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(path: str, tree: ast.Module) -> Iterator[str]:
    """The comments and docstrings of a source."""
    for token in tokenize.generate_tokens(io.StringIO((ROOT / path).read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def missing_files(text: str, known: set[str]) -> set[str]:
    """Names of Python files in `text` that are no file, nor the end of the path of one."""
    ends = {path[i + 1 :] for path in known for i, c in enumerate(f"/{path}", -1) if c == "/"}
    named = {found.removeprefix("../").removeprefix("../") for found in PATH.findall(text)}
    return {name for name in named if name not in ends | EXAMPLES}


def module_file(dotted: str) -> str | None:
    package = next(p for p in PACKAGES if dotted == p or dotted.startswith(p + "."))
    path = PACKAGES[package] + dotted.removeprefix(package).replace(".", "/")
    return next((p for p in (f"{path}.py", f"{path}/__init__.py") if p in sources()), None)


def names_of(tree: ast.Module) -> set[str]:
    """What a module defines, imports, or holds as a string (lazily imported public names)."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module of ours, or a name in one."""
    if dotted in GROUPS or module_file(dotted):
        return True
    module, rest = dotted, []
    while not (path := module_file(module)):
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
    return rest[0] in names_of(sources()[path])


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_name_files_and_modules_that_exist(path):
    text = path.read_text()
    # A stored run names the files of its commit.
    is_stored = path.parent.name == "results" and text.startswith("<!-- Generated")
    assert is_stored or not missing_files(text, set(sources()))
    assert not {name for name in DOTTED.findall(text) if not exists(name)}


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    wrong = []
    for target, anchor in LINK.findall(text):
        there = (path.parent / target) if target else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(f"{target}#{anchor}")
    assert not wrong


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_docstrings_and_comments_name_files_and_modules_that_exist():
    known, wrong = set(sources()), []
    for path, tree in sources().items():
        if path == "test/py/lint/test_doc_paths.py":
            continue
        text = "\n".join(prose(path, tree))
        dotted = (name for name in DOTTED.findall(text) if not exists(name))
        wrong += [f"{path}: {name}" for name in sorted({*missing_files(text, known), *dotted})]
    assert not wrong, "named, but not there:\n" + "\n".join(wrong)


def test_the_map_names_every_folder():
    """docs/architecture.md lists each folder that holds modules."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    files = [path for path in sources() if not path.startswith("test/")]
    folders = {path.rpartition("/")[0] for path in files if not path.endswith("__init__.py")}
    assert not {folder for folder in folders if f"`{folder}/`" not in text}


def test_the_checks_see_what_is_not_there():
    known = {"pyc_mlir/iree/compiler.py", "tools/docs/pages.py"}
    text = "compiler.py, `iree/compiler.py`, pages.py, docs/kernels.py, `absent.py`, file.py"
    assert missing_files(text, known) == {"docs/kernels.py", "absent.py"}
    assert exists("pyc_mlir.compile") and exists("pyc_mlir.iree.compiler.run")
    assert exists("pyc_mlir.dialects.ops") and exists("pyc_mlir.kernels")
    assert not exists("pyc_mlir.iree.absent") and not exists("pyc_mlir.tools.absent.main")
