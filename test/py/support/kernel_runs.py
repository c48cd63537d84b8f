"""Compile many kernels in one module, and run each as PyC runs a program."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from assembly import Loop, innermost_loops
from conftest import ALL_CASES

from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device, host_cpu
from pyc_mlir.runtime.executable import Executable, ResultType

FLOAT = ResultType(np.dtype(np.float32), None)
DTYPES = {
    **{"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16},
    **{"i64": np.int64, "i32": np.int32, "i8": np.int8, "ui8": np.int8},
}
RESULTS = {name: ResultType(np.dtype(dtype), None) for name, dtype in DTYPES.items()}

LEVELS = (Target.named("cpu-avx2"), Target.named("cpu-avx512"))


def targets(file: str = "") -> list[Any]:
    """The CPU targets with kernels, to parametrize by; those beyond this machine are skipped.

    A sampled run has one target for a `file` of tests or a `file-family`, always the same one.
    """
    return [pytest.param(t, marks=_skipped(_lacks(t))) for t in _levels(file)]


def pairs(file: str, names: Iterable[str]) -> list[Any]:
    """(family, target) pairs to parametrize by: all of them, in a sampled run a target each."""
    return [
        pytest.param(name, target, marks=_skipped(_lacks(target)))
        for name in names
        for target in _levels(f"{file}-{name}")
    ]


def name_of(parameter: Target | str) -> str:
    """The part of a test's id for a family or a target."""
    return parameter if isinstance(parameter, str) else parameter.name


def _levels(draw: str) -> Sequence[Target]:
    here = [target for target in LEVELS if not _lacks(target)]
    return [Random(draw).choice(here)] if draw and here and not ALL_CASES else LEVELS


def any_target() -> Target:
    """The first of them that this machine runs; the test is skipped where there is none."""
    for target in LEVELS:
        if not _lacks(target):
            return target
    pytest.skip("no target with kernels runs here")


def _lacks(target: Target) -> list[str]:
    """The features of a target that this machine does not have."""
    cpu = host_cpu()
    return sorted(target.features - (frozenset() if cpu is None else cpu.features))


def _skipped(lacks: list[str]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skip(reason=f"this CPU lacks {', '.join(lacks)}")] if lacks else []


class Kernels:
    """Compiled kernels: `run(name, arrays...)` gives numpy arrays."""

    def __init__(
        self,
        target: Target,
        kernels: Sequence[Kernel],
        constants: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        flags: Sequence[str] = (),
        device: Device | None = None,
    ) -> None:
        carrier = Carrier(target)
        carrier.add(*kernels)
        for kernel in kernels:
            carrier.call(kernel, (constants or {}).get(kernel.name))
        self.device = device or Device("local-sync")
        code = compile_module(carrier.bytecode(), target, flags)
        self.executable = Executable(code, self.device)
        self.inputs = {
            k.name: [
                DTYPES[o.dtype] for o in k.inputs if o.name not in (constants or {}).get(k.name, {})
            ]
            for k in kernels
        }
        self.results = {k.name: [RESULTS[o.dtype] for o in k.results] for k in kernels}

    def run(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        entry = self.executable.entry(name, self.results[name])
        pairs = zip(arrays, self.inputs[name], strict=True)
        inputs = [to_device(np.ascontiguousarray(a, dtype), self.device) for a, dtype in pairs]
        return np.array(entry(inputs)[0].numpy())


def in_place(kernel: Kernel) -> Kernel | None:
    """The kernel with its result in the memory of an input, as it declares; None where it does not.

    The memory planner may place them so. Of the declared inputs the last one of the result's shape
    is taken: what an epilogue reads rather than x.
    """
    shapes = {o.name: o.shape for o in kernel.operands}
    pairs = [(y, x) for y, x in kernel.in_place if shapes[y] == shapes[x]]
    if not pairs:
        return None
    result, taken = pairs[-1]
    kept = [o for o in kernel.operands if o.name != result]
    names = [o.name for o in kept]
    places = [names.index(taken if o.name == result else o.name) for o in kernel.operands]

    def body(k: Build, *memory: Memory) -> None:
        kernel.body(k, *(memory[place] for place in places))

    operands = tuple(replace(o, role="update") if o.name == taken else o for o in kept)
    return Kernel(kernel.name, operands, kernel.grid, body)


def assembly(target: Target, kernels: Sequence[Kernel], folder: Path) -> str:
    """What LLVM writes for the kernels; needs no such machine."""
    carrier = Carrier(target)
    carrier.add(*kernels)
    for kernel in kernels:
        carrier.call(kernel)
    compile_module(carrier.bytecode(), target, [f"--iree-hal-dump-executable-files-to={folder}"])
    return next(folder.glob("*.s")).read_text()


def spills(target: Target, kernels: Sequence[Kernel], folder: Path) -> list[Loop]:
    """Inner loops of the kernels that move vectors to or from the stack; needs no such machine."""
    loops = innermost_loops(assembly(target, kernels, folder))
    names = {k.name for k in kernels}
    assert names <= {loop.function for loop in loops}
    return [loop for loop in loops if loop.function in names and loop.spills]


def pointwise(name: str, function, size: int | str = "n") -> Kernel:
    """A kernel that applies a function on vectors to every number."""

    def body(k, x, y):
        @k.each(k.size(size))
        def _(at):
            y.store(function(x.load(at)), at)

    return Kernel(name, (Operand("x", (size,)), Operand("y", (size,), "out")), lambda s: (1,), body)


def agrees(got: np.ndarray, exact: np.ndarray, bound: np.ndarray) -> None:
    """NaN and infinities stand where they belong, all other numbers are within the bound."""
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    known = np.isfinite(exact)
    assert np.array_equal(got[np.isinf(exact)], exact[np.isinf(exact)])
    assert (np.abs(got[known].astype(np.float64) - exact[known]) <= bound[known]).all()
