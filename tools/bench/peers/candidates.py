"""Candidates of a workload: PyC as it comes, plain IREE and onnxruntime at their best setting.

A candidate is prepared under one or several settings; `prepared.choose` finds the quickest by
measuring, so that the other side of a comparison is never held back by a setting that does not suit
it.
Each is called the way that costs it least: IREE with arrays on its device and a prebuilt argument
list, onnxruntime by `run` or with bound inputs and outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.artifact.memory import UNPLANNED
from pyc_mlir.compilation.build import SETTINGS as FUSION
from pyc_mlir.compilation.lower import Lowered
from pyc_mlir.compilation.options import NO_KERNELS, Options, make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.iree.foreign import compile_plain, plain_flags
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import DEFAULT_ALLOCATOR, Device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.bench.peers.footprint import footprint, prepared_program
from pyc_mlir.tools.bench.peers.prepared import Named, PreparedWorkload, Spent
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import note

# What IREE can be told; all with the target CPU set to the host, which it needs most.
_TILING = {
    "no data tiling": (),
    "data tiling at dispatch creation": ("--iree-dispatch-creation-data-tiling",),
    "data tiling at global optimization": ("--iree-global-opt-data-tiling",),
}
IREE_COMPILES: Mapping[str, tuple[str, ...]] = {
    f"O3, {fusion} fusion, {tiling}": (*fusion_flags, *tiling_flags)
    for fusion, fusion_flags in FUSION.items()
    for tiling, tiling_flags in _TILING.items()
}
# What helps few programs (reductions over leading axes), and costs all of them a compile.
IREE_MORE: Mapping[str, tuple[str, ...]] = {
    "O3, aggressive fusion, split reduction": ("--iree-dispatch-creation-enable-split-reduction",),
}
ALLOCATORS = {"": None, ", caching allocator": "caching"}


def pyc(workload: Workload, options: Options, device: Device) -> PreparedWorkload:
    """Prepare PyC's program with arrays on the device."""
    program = Program(build(workload.source, workload.specs, options), device)
    return prepared_program(program, workload.arrays)


def pyc_by_default(workload: Workload, threads: int) -> PreparedWorkload:
    """Prepare PyC's program as users get it, on a machine of so many cores."""
    artifact = build(workload.source, workload.specs, make_options())
    program = Program(artifact, Device("local", threads, DEFAULT_ALLOCATOR))
    return prepared_program(program, workload.arrays)


def plain_options() -> Options:
    """Return options that lower a program for IREE alone: no parts, no kernels of PyC's."""
    return make_options(planner_mode=UNPLANNED, kernels=NO_KERNELS)


def plain_settings(
    name: str,
    lowered: Lowered,
    inputs: Sequence[np.ndarray],
    threads: int,
    compiles: Mapping[str, tuple[str, ...]] = IREE_COMPILES,
    on: Mapping[str, Device] | None = None,
) -> Named:
    """Yield the settings of a lowered program; the first one is IREE's own default at O3.

    `on` are the devices to try, by the names that settings have for them; else all.
    """
    options = make_options()
    devices = devices_for(threads) if on is None else on
    for setting, flags in compiles.items():
        start = Spent.so_far()
        try:
            vmfb = compile_plain(lowered.code, plain_flags(options.target, *flags))
        except PycError as error:
            note(f"{name}: iree alone fails under {setting}: {error.message[:200]}")
            continue
        compiled = Spent.so_far().since(start)
        for kind, device in devices.items():
            prepared = _plain_program(inputs, lowered, vmfb, device)
            yield f"{setting}; {kind}", replace(prepared, compiled=compiled)


def devices_for(threads: int) -> dict[str, Device]:
    """Return every kind of device with every allocator; first the kind for so many threads."""
    kinds = ("local-sync", "local-task") if threads == 1 else ("local-task", "local-sync")
    return {
        f"{kind}{suffix}": Device(kind, threads if kind == "local-task" else None, allocator)
        for kind, (suffix, allocator) in product(kinds, ALLOCATORS.items())
    }


def plain_artifact(lowered: Lowered, vmfb: bytes) -> Artifact:
    """Return plain IREE's code as an artifact, without PyC's other entries."""
    target = make_options().target
    manifest = make_manifest(target, lowered.signature, lowered.graph_id, entry=lowered.entry)
    return Artifact(vmfb, manifest)


def _plain_program(
    inputs: Sequence[np.ndarray], lowered: Lowered, vmfb: bytes, device: Device
) -> PreparedWorkload:
    types = [ResultType(o.dtype, o.static_shape) for o in lowered.signature.outputs]
    entry = Executable(vmfb, device).entry(lowered.entry, types)
    arrays = [to_device(a, device) for a in inputs]
    artifact = plain_artifact(lowered, vmfb)
    return PreparedWorkload(
        entry.bare_call(arrays),
        lambda: [r.numpy() for r in entry(arrays)],
        lambda: footprint(artifact, inputs).peak_bytes,
    )
