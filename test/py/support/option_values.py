"""A value of each field of `Options`, and of a recipe, that is not its default."""

from pathlib import Path
from typing import Any

from calibrations import calibration

from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.choices.policies import BUILT_IN
from pyc_mlir.pipelines.shapes.choose import Demand
from pyc_mlir.pipelines.target.target import Target

RECIPE = Recipe(
    choices={"s": "d"},
    origins={"s": ("policy", (Note("seen"),))},
    graph_id="g",
    tolerant=True,
    made_for="h",
    works={"p:w": "c"},
)
# What a key must show.
CHANGES: dict[str, Any] = {
    "target": Target.named("cpu-avx2"),
    "contract": Contract(memory_budget_bytes=1 << 20),
    "policy": BUILT_IN["balanced"],
    "recipe": RECIPE,
    "iree_flags": ("--iree-opt-level=O1",),
    "planner_modes": ("memory_first",),
    "kernels": "iree",
    "parts_for": "memory_first",
    "also_modes": ("balanced",),
    "ranges": {"batch": (1, 64)},
    "calibration": calibration(),
    "co_selected": True,
    "own_constants": True,
    "islands": True,
    "function": "score",
    "outputs": ("score",),
    "guard_indices": False,
    "check": True,
    "plans": "auto",
    "demand": Demand.of_ranges({"batch": (1, 2)}),
}
# What no content names.
REFUSED: dict[str, Any] = {
    "dump_phases": Path("phases"),
    "passes": "pyc-canonicalize",
    "node_names": True,
}
