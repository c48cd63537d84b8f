"""Our Python sources as syntax trees, parsed once for all checks of a process."""

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("dialects", "pipelines", "pyc_mlir", "tools")


@cache
def trees(*folders: str) -> dict[str, ast.Module]:
    """Return the tree of each Python file below `folders`, by its path from the root."""
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): tree(file) for file in files}


@cache
def tree(path: Path) -> ast.Module:
    """Return the tree of one file; the collector would look at its many nodes again and again."""
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        gc.enable()


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a file of the product, by its path from the root."""
    return tuple(ast.walk(tree(ROOT / path)))
