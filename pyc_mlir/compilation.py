"""From a model to a program: front end, pyc passes, linalg, IREE, artifact.

    program = compile("model.onnx", target="cpu")
    y = program(x)

`lower` stops at MLIR, `build` at the artifact (for targets without a device here), `compile`
loads the artifact on a device.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyc_mlir.artifact import Artifact, make_manifest
from pyc_mlir.iree.attempts import Request, compile_with_fallback
from pyc_mlir.iree.device import Device, host_cpu
from pyc_mlir.iree.planned import compile_planned, planner_of
from pyc_mlir.lowering import Lowered, Options, lower
from pyc_mlir.pipelines.choices import Choices, FirstIsBest, Policy, Recipe
from pyc_mlir.pipelines.contract import Contract
from pyc_mlir.pipelines.target import Target
from pyc_mlir.program import Program


def compile(
    source: Any,
    inputs: Sequence[Any] | None = None,
    *,
    target: str | Target = "cpu",
    contract: Contract | None = None,
    policy: Policy | None = None,
    recipe: Recipe | str | Path | None = None,
    device: Device | None = None,
    iree_flags: Sequence[str] = (),
    dump_phases: str | Path | None = None,
    planner_mode: str = "",
) -> Program:
    """Compile `source` and load it on a device.

    source: a Python function, an ``.onnx`` or ``.mlir`` file, an ONNX model, MLIR text, a module.
    inputs: for functions the arguments' specs or example arrays; for other sources shapes (or
        arrays) that refine dynamic dimensions.
    target: a name of `pyc_mlir.pipelines.target.TARGETS`, or a Target.
    contract: clauses that must be kept; those that cannot be are refused.
    policy, recipe: who answers the choices; a recipe is the log of an earlier compile.
    iree_flags, dump_phases: passed to IREE; a folder that gets the IR of each of its phases.
    planner_mode: ``latency_first``, ``balanced`` or ``memory_first`` plans memory by PyC, kept
        wherever it is smaller than IREE's plan; empty leaves it to IREE.

    Raises PycError with the reason's code.
    """
    options = make_options(target, contract, policy, recipe, iree_flags, dump_phases, planner_mode)
    return Program(build(source, inputs, options), device)


def make_options(
    target: str | Target = "cpu",
    contract: Contract | None = None,
    policy: Policy | None = None,
    recipe: Recipe | str | Path | None = None,
    iree_flags: Sequence[str] = (),
    dump_phases: str | Path | None = None,
    planner_mode: str = "",
) -> Options:
    """Options from what users give.

    Raises PycError for an unknown target or planner mode, or a refused clause.
    """
    if planner_mode:
        planner_of(planner_mode)
    found = Target.named(target) if isinstance(target, str) else target
    cpu = host_cpu()
    if found.name == "cpu" and cpu is not None:
        found = found.on(cpu)
    promised = contract or Contract()
    promised.check(found.name)
    return Options(
        found,
        promised,
        policy or FirstIsBest(),
        Recipe.load(recipe) if isinstance(recipe, (str, Path)) else recipe,
        tuple(iree_flags),
        None if dump_phases is None else Path(dump_phases),
        planner_mode=planner_mode,
    )


def build(source: Any, inputs: Sequence[Any] | None, options: Options) -> Artifact:
    """Compile to an artifact; no device is needed. Raises as `compile`."""
    return finish(lower(source, inputs, options), options)


def finish(lowered: Lowered, options: Options) -> Artifact:
    """Compile a lowered program by IREE and make its artifact. Raises as `compile`."""
    folder = options.dump_phases
    request = Request(
        lowered.code,
        options.target,
        options.iree_flags,
        None if folder is None else str(folder),
        lowered.locations,
    )
    choices = Choices(options.policy, options.recipe, list(lowered.decisions))
    first = "plain" if lowered.mixes_rows else "aggressive"
    if options.planner_mode:
        planner = planner_of(options.planner_mode)
        vmfb = compile_planned(request, lowered.graph_id, choices, planner, first)
    else:
        vmfb = compile_with_fallback(request, lowered.graph_id, choices, first)
    choices.require_recipe_used()
    manifest = make_manifest(
        options.target,
        lowered.signature,
        lowered.graph_id,
        lowered.constants_bytes,
        options.contract,
        entry=lowered.entry,
    )
    return Artifact(vmfb, manifest, tuple(choices.log), lowered.pyc_text.encode())
