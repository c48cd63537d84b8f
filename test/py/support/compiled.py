"""Many small pyc functions compiled as one module and run on the CPU, for numerics in bulk."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyc_mlir.compilation.build import SETTINGS, UNFUSED, Built, Plan, build
from pyc_mlir.compilation.lower import Lowered
from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType, is_float
from pyc_mlir.iree.diagnostics import CompileError
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.kernels.lang.attributes import IREE
from pyc_mlir.pipelines.linalg.convert_to_linalg import ConvertToLinalg
from pyc_mlir.pipelines.pyc.select_kernels import SelectKernels
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable, ResultType


@dataclass(frozen=True)
class OwnKernels:
    """PyC's kernel wherever one is offered, cheap or not."""

    name: str = "own"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """The first that is not IREE's code, where there is one."""
        names = [a.name for a in alternatives]
        own = [n for n in names if n != IREE] if site.pass_name == SelectKernels.name else names
        return (own or names)[0]


@dataclass(frozen=True)
class OpCall:
    """One op on arrays; `declared` are the function's argument types if not the arrays' own."""

    op: str
    arrays: tuple[np.ndarray, ...]
    params: dict[str, Any] = field(default_factory=dict)
    declared: tuple[TensorType, ...] | None = None

    def __str__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return f"{self.op}({shapes}) {self.params}{' dynamic' if self.declared else ''}"

    def types(self) -> list[TensorType]:
        """The argument types of the function."""
        own = [TensorType(a.shape, a.dtype) for a in self.arrays]
        return list(self.declared or own)

    def build(self, builder: IRBuilder, *arguments: ir.Value) -> ir.Value:
        """Emit the op."""
        return builder.build(OPS[self.op], *arguments, **self.params)


Body = Callable[..., Any]


def add_function(
    module: ir.Module, name: str, types: Sequence[TensorType], body: Body
) -> list[TensorType]:
    """Append a function whose body is built by `body(builder, *arguments)`."""
    with ir.InsertionPoint(module.body):
        function = func.FuncOp(name, ([to_mlir(t) for t in types], []))
        block = function.add_entry_block()
    with ir.InsertionPoint(block):
        out = body(IRBuilder(), *block.arguments)
        values = list(out) if isinstance(out, (tuple, list)) else [out]
        func.ReturnOp(values)
    inputs = [a.type for a in block.arguments]
    type_ = ir.FunctionType.get(inputs, [v.type for v in values])
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    return [IRBuilder().type_of(v) for v in values]


def run_calls(calls: Sequence[OpCall]) -> list[np.ndarray]:
    """Compile all calls as functions of one module; return each call's result."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        results = [
            add_function(module, f"f{i}", call.types(), call.build) for i, call in enumerate(calls)
        ]
        executable = compile_and_load(module)
    return [
        run_function(executable, f"f{i}", call.arrays, results[i])[0]
        for i, call in enumerate(calls)
    ]


def compile_and_load(module: ir.Module) -> Executable:
    """Lower a pyc module in place and load it on local-sync."""
    ConvertToLinalg().run(module, PassContext())
    assert module.operation.verify()
    return Executable(_built(str(module).encode()).vmfb, Device("local-sync"))


def _built(code: bytes) -> Built:
    """Return what the first setting gives that IREE has code for."""
    plan = Plan(lowered=Lowered(code=code), options=Options(target=Target.named("cpu")))
    for setting in SETTINGS:
        with suppress(CompileError):
            return build(plan, setting)
    return build(plan, UNFUSED)


def run_function(
    executable: Executable,
    name: str,
    arrays: Sequence[np.ndarray],
    results: Sequence[TensorType],
) -> list[np.ndarray]:
    """Call one function with numpy arrays; what it is given on the device keeps its bits."""
    types = [ResultType(t.dtype, None) for t in results]
    entry = executable.entry(name, types)
    given = [to_device(a, executable.device) for a in arrays]
    got = [r.numpy() for r in entry(given)]
    for number, (array, before) in enumerate(zip(given, arrays, strict=True)):
        assert array.numpy().tobytes() == before.tobytes(), f"{name} changes argument {number}"
    return got


# Relative error against the f64 reference for one operation of each type.
RELATIVE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def assert_close(got: np.ndarray, expected: np.ndarray, what: str, scale: float = 1.0) -> None:
    """Equal shapes and dtypes; floats within the tolerance of their type, NaNs where expected."""
    assert got.dtype == expected.dtype, f"{what}: dtype {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    if not is_float(expected.dtype):
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    name = {2: "f16", 4: "f32", 8: "f64"}[expected.dtype.itemsize]
    name = "bf16" if str(expected.dtype) == "bfloat16" else name
    tolerance = RELATIVE[name] * scale
    np.testing.assert_allclose(
        got.astype(np.float64),
        expected.astype(np.float64),
        rtol=tolerance,
        atol=tolerance,
        err_msg=what,
    )


def expected_of(call: OpCall) -> np.ndarray:
    """The oracle's result of a call."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        add_function(
            module, "main", [TensorType(a.shape, a.dtype) for a in call.arrays], call.build
        )
        return interpret(module, call.arrays)[0]
