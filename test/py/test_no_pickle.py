"""What PyC reads is data: nothing in its sources makes code or objects of what stands in a file."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("dialects", "pipelines", "pyc_mlir", "tools")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MODULES = {
    "pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle",
    "yaml", "copyreg",
}  # fmt: skip
CALLS = {"eval", "exec", "__import__"}
# A benchmark hands work to processes that it starts itself, through a folder of its own.
BETWEEN_OWN_PROCESSES = {"tools/bench/latency/rounds.py", "tools/bench/peers/systems.py"}


def found(tree: ast.AST) -> list[str]:
    """What reads more than data, with its line."""
    wrong = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            wrong += [f"{line}: {a.name}" for a in node.names if a.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            wrong += [f"{line}: {node.module}"] * ((node.module or "").split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            wrong += [f"{line}: {why}" for why in _call(node)]
    return wrong


def _call(node: ast.Call) -> list[str]:
    function = node.func
    if isinstance(function, ast.Name):
        return [function.id] * (function.id in CALLS)
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return []
    owner, name = function.value.id, function.attr
    safe = any(
        k.arg == "allow_pickle" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in node.keywords
    )
    loads = owner in ("np", "numpy") and name in ("load", "save") and not safe
    return [f"{owner}.{name}"] * (loads or (owner, name) == ("torch", "load"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled_or_evaluated(path):
    if str(path.relative_to(ROOT)) in BETWEEN_OWN_PROCESSES:
        pytest.skip("between a benchmark and its own processes")
    assert not found(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    "text", ["import pickle", "from marshal import loads", "eval('1')", "np.load(f)",
             "np.load(f, allow_pickle=True)", "import yaml.x", "torch.load(f)"],
)  # fmt: skip
def test_the_search_finds(text):
    assert found(ast.parse(text))
