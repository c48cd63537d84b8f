"""Count what docs/design-notes/house.md promises of the sources.

    python test/house.py

A room is a file of `pyc_mlir/`, entered by a call from another one; what Python generates, such as
the `__init__` of a dataclass, counts as its caller. A return is an entry into a room that was
entered before.
"""

import gc
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def walked(work: Callable[[], object], until: Callable[[CodeType], bool]) -> list[str]:
    """Return the rooms that `work` enters, in order, until the code that `until` names returns."""
    steps: list[str] = []
    done = False

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal done
        name = frame.f_code.co_filename
        if done or event not in ("call", "return") or not name.startswith(f"{ROOT}/pyc_mlir/"):
            return
        if event == "return":
            done = until(frame.f_code)
        else:
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(f"{ROOT}/"):
                caller = caller.f_back
            if caller is None or caller.f_code.co_filename != name:
                steps.append(name.removeprefix(f"{ROOT}/"))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return steps


# The ONNX importer's own rooms.
IMPORTER = ("pyc_mlir/frontends/onnx/", "pyc_mlir/frontends/importing/")


def rooms(last: str = "lower") -> dict[str, int]:
    """Return the rooms and returns of a model with one Relu, from `compile` until `last` returns.

    Those of the importer apart, too.
    """
    # The sources that are counted, not those of an installation elsewhere.
    sys.path.insert(0, str(ROOT))
    from onnx import TensorProto, helper, save

    import pyc_mlir

    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y")]
    relu = helper.make_node("Relu", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([relu], "relu", value[:1], value[1:]))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        save(model, path)
        # Imports run once, and are no step of a compile. Nor is the end of an earlier program.
        pyc_mlir.compile(path, cache=False)
        gc.collect()
        steps = walked(
            lambda: pyc_mlir.compile(path, cache=False),
            lambda code: code.co_name == last and "/compilation/" in code.co_filename,
        )
    if "-v" in sys.argv:
        print("\n".join(steps))
    own = [step for step in steps if not step.startswith(IMPORTER)]
    return {
        "rooms": len(set(steps)),
        "returns": len(steps) - len(set(steps)),
        "rooms without the importer's": len(set(own)),
        "returns without the importer's": len(own) - len(set(own)),
    }


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def numbers() -> dict[str, int]:
    """Return the counts of the table in docs/design-notes/house.md."""
    product = files("dialects", "pipelines", "pyc_mlir", "tools")
    apart = [*files("pyc_mlir/lab", "tools/bench", "tools/docs"), ROOT / "tools/demo/train.py"]
    unfit = re.compile(r'^ *"""(What|Whether|Where)\b', re.MULTILINE)
    unfit_docstrings = sum(len(unfit.findall(path.read_text())) for path in product)
    own = files("dialects", "pipelines", "pyc_mlir")
    compiler = "\n".join(p.read_text() for p in own if "lab" not in p.parts)
    product, apart, tests = (
        sum(path.read_text().count("\n") for path in paths)
        for paths in (product, apart, files("test/py"))
    )
    policies = re.compile(r"isinstance\([^)]*\b(Fastest|Explore|Policy)\b|== (Expl|Fast)\w+\.name")
    results = sum(p.stat().st_size for p in (ROOT / "docs/results").rglob("*.json"))
    return {
        "lines of the product": product,
        "lines outside the laboratory and the makers": product - apart,
        "lines of test/py": tests,
        "asks for a concrete policy": len(policies.findall(compiler)),
        "imports of the laboratory by the compiler": compiler.count("from pyc_mlir.lab"),
        "docstrings that begin with What, Whether, Where": unfit_docstrings,
        "kilobytes of JSON in docs/results": results // 1000,
        **rooms(),
        **{f"{name}, up to the artifact": count for name, count in rooms("complete").items()},
    }


if __name__ == "__main__":
    print(*(f"{name}: {count}" for name, count in numbers().items()), sep="\n")
