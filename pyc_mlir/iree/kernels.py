"""Turn calls of kernels into dispatches and generate their code, on IREE's side.

Comes in: a module in which a kernel is a private function without a body and with the attribute
``pyc.kernel = {family, knobs}`` (`pipelines/linalg/kernel_call.py`). `carry_kernels`, before IREE's
first phase, puts the kernels into executables of their own, and a ``flow.dispatch`` in the place
of each call. They hold stubs with the same attribute until the end of phase `stream`; then
`write_kernels` generates the code, after all that is decided about dispatches. Until the end of
phase `flow` a barrier keeps IREE from evaluating a dispatch whose operands it knows (`let_go`).
"""

from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE, HELD
from pyc_mlir.pipelines.streams.ir import find, ir, name_of
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.target import Target


def carry_kernels(module: Any, target: Target) -> int:
    """Give `module` (an operation of IREE's bindings) executables with its kernels; how many.

    Raises PycError (INVALID_IR) for a kernel that no family makes for the target.
    """
    declared = {name_of(f): f for f in find(module, "func.func") if ATTRIBUTE in f.attributes}
    if not declared:
        return 0
    # Most modules have no kernels, and these modules load all dialects that kernels are made of.
    from pyc_mlir.pipelines.kernels.lang.carrier import Carrier

    kernels, operations, stubs = {}, {}, {}
    for name, function in declared.items():
        kernels[name], operations[name] = _kernel(name, function, target)
        stubs[name] = {ATTRIBUTE: function.attributes[ATTRIBUTE]}
    carrier = Carrier(target, module.context)
    # An executable for each: IREE compiles executables at the same time.
    for kernel in kernels.values():
        carrier.add(kernel, operations=operations, stubs=stubs)
    body = module.regions[0].blocks[0]
    with module.context, ir.Location.unknown():
        for op in list(carrier.module.body.operations):
            op.operation.detach_from_parent()
            ir.InsertionPoint.at_block_begin(body).insert(op)
    for call in find(module, "func.call"):
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if name not in kernels:
            continue
        with ir.InsertionPoint(call), call.location:
            inputs = (o.name for o in kernels[name].inputs)
            made = carrier.dispatch(kernels[name], dict(zip(inputs, call.operands, strict=True)))
        for result, value in zip(call.results, made, strict=True):
            result.replace_all_uses_with(value)
        call.erase()
    for function in declared.values():
        function.erase()
    return len(kernels)


def let_go(module: Any) -> None:
    """Drop what kept IREE from running kernels' stubs for operands that it knows.

    To be called at the end of phase `flow`: only the phases before it evaluate what is known.
    """
    for barrier in find(module, "util.optimization_barrier"):
        if HELD in barrier.attributes:
            barrier.results[0].replace_all_uses_with(barrier.operands[0])
            barrier.erase()


def write_kernels(module: Any, target: Target) -> int:
    """Put the code of kernels in the place of their stubs, at the end of phase `stream`; how many.

    `target` is that of `carry_kernels`.
    """
    stubs = [
        op
        for executable in find(module, "stream.executable")
        for op in find(executable, "util.optimization_barrier")
        if ATTRIBUTE in op.attributes
    ]
    if stubs:
        from pyc_mlir.pipelines.kernels.lang.carrier import write_body

        for stub in stubs:
            kernel, _ = _kernel("of a stub", stub, target)
            write_body(kernel, stub, target)
    return len(stubs)


def _kernel(name: str, op: Any, target: Target) -> tuple[Any, int]:
    """Return the kernel that an op stands for, and the arithmetic operations of one run of it."""
    from pyc_mlir.pipelines.kernels.knobs import decode
    from pyc_mlir.pipelines.kernels.registry import FAMILIES

    try:
        text = ir.DictAttr(op.attributes[ATTRIBUTE])
        family = FAMILIES[ir.StringAttr(text["family"]).value]
        knobs = decode(family.knobs, ir.StringAttr(text["knobs"]).value)
    except (KeyError, ValueError) as error:
        raise _refusal(
            name, f"the attribute {ATTRIBUTE} with a family and its knobs", error
        ) from None
    if refusal := family.refusal(knobs, target):
        raise _refusal(name, f"a kernel for target `{target.name}`", refusal)
    kernel = knobs.kernel(name)
    sizes = dict.fromkeys(kernel.sizes, NOMINAL_DIMENSION)
    return kernel, round(family.cost(knobs, target, sizes).flops)


def _refusal(name: str, expected: str, came: object) -> PycError:
    return PycError(ReasonCode.INVALID_IR, f"kernel @{name}: expected {expected}, got {came}")
