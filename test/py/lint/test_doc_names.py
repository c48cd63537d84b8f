"""Names in backticks exist: identifiers, files, flags and passes, in docstrings and documents.

In a docstring `single` backticks hold a name of ours and ``double`` ones any other code. Markdown
has one kind, so that there only what looks like a name of ours is looked up.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from source_trees import PRODUCT, ROOT, trees

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
DASHED = re.compile(r"(?:--|pyc-)[a-z][\w-]*")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")
# `A_b`, `AbC` and dotted names; a single word in Markdown may be anybody's.
OURS = re.compile(r"\w+_\w+|[A-Z]\w*[a-z][A-Z]\w*|_?[a-zA-Z]\w*(?:\.\w+)+")
OP_ID = re.compile(r"\w+\.[0-9a-f]{16}")
GENERATED = {"commands.md", "frontends.md"}
CLAUSE = re.compile(r"(What|Whether|Where)\b")
NO_VERB = re.compile(
    r"(All|Any|As|At|By|Bytes|Each|Every|For|From|How|In|Names|Of|One|Random|Rows|Seconds|Those|"
    r"Values|Which|Why|With|Without|Zeros)\b"
)
OTHERS = {"OpInfo", "NoContraction", "task_worker_spin_us"}  # of PyTorch, SPIR-V, IREE


def documented(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstrings below a node, without a look at expressions."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
        statement = node.body[0]
        assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        yield statement.value
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, field, ()) if not isinstance(node, ast.expr) else ():
            yield from documented(child)


@cache
def docstrings() -> dict[str, list[ast.Constant]]:
    """Return the docstrings of each source by its path."""
    return {path: list(documented(tree)) for path, tree in trees(*PRODUCT, "test", "docs").items()}


@cache
def known() -> set[str]:
    """Return all words of code and of file names: not those of comments and docstrings."""
    found = {"pyc_mlir", "test", *dir(builtins)}
    files = [*ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "test/lit").rglob("*")]
    for path in [*docstrings(), *(file.relative_to(ROOT).as_posix() for file in files)]:
        found.update(re.split(r"[/.]", path))
    for name in ("Makefile", "pyproject.toml"):
        found |= words((ROOT / name).read_text())
    for path, texts in docstrings().items():
        lines = (ROOT / path).read_text().split("\n")
        for text in texts:
            lines[text.lineno - 1 : text.end_lineno] = [""] * (
                (text.end_lineno or text.lineno) - text.lineno + 1
            )
        found |= words(re.sub(r"(?m)(^|\s)#.*$", "", "\n".join(lines)))
    return found


def words(text: str) -> set[str]:
    return {*WORD.findall(text), *DASHED.findall(text)}


def unknown(text: str, pattern: re.Pattern[str], names: set[str]) -> set[str]:
    """Return the spans of `text` that look like names and are none."""
    wrong = set()
    for span in SPAN.findall(text):
        if DASHED.fullmatch(span):
            parts = [] if span.startswith("--iree-") else [span]
        elif NAME.fullmatch(span) and pattern.fullmatch(span.removesuffix("()")):
            parts = [] if OP_ID.fullmatch(span) else span.removesuffix("()").split(".")
        else:
            continue
        wrong |= {span} if any(part not in names for part in parts) else set()
    return wrong


def test_docstrings_name_what_exists():
    wrong = [
        f"{path}:{text.lineno}: {name}"
        for path, texts in docstrings().items()
        if not path.startswith("test/")
        for text in texts
        for name in sorted(unknown(str(text.value), NAME, known()))
    ]
    assert not wrong, "no name of ours (other code goes in double backticks):\n" + "\n".join(wrong)


def test_docstrings_are_statements():
    """A function's docstring begins with a verb (see also ruff D401), no other with a clause."""
    wrong = []
    for path, tree in trees(*PRODUCT).items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            head = (ast.get_docstring(node) or "").partition("\n\n")[0]
            unfit = CLAUSE.match(head) or (is_function(node) and NO_VERB.match(head))
            if unfit or "? " in head or head.endswith("?"):
                wrong.append(f"{path}: {getattr(node, 'name', 'module')}: {head}")
    assert not wrong, "a docstring begins with a statement:\n" + "\n".join(wrong)


def is_function(node: ast.AST) -> bool:
    """Return whether a node is a function and no property."""
    decorators = [ast.unparse(d) for d in getattr(node, "decorator_list", ())]
    return isinstance(node, ast.FunctionDef) and not any("property" in d for d in decorators)


def test_documents_name_what_exists():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    wrong = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in sorted(pages)
        if page.name not in GENERATED
        for name in sorted(unknown(prose(page), OURS, known() | OTHERS))
    ]
    assert not wrong, "named, but not there:\n" + "\n".join(wrong)


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def test_the_checks_see_what_is_not_there():
    text = "`a_b`, `c()`, `x.a_b`, ``other``, `b c`, `pyc-no`, `--iree-x`, `op.0123456789abcdef`"
    assert unknown(text, NAME, {"x", "c"}) == {"a_b", "x.a_b", "pyc-no"}
    assert unknown("`memcmp`, `A`, `AbC`, `Abc`, `a.b`", OURS, set()) == {"AbC", "a.b"}
