"""Keep code generators from contracting a product and a sum into one fused multiply-add.

A product that several ops read is computed again next to each of them, within a dispatch and
across dispatches. Where one copy is contracted with the sum that reads it and another is rounded,
``y = x * s`` has two values: ``y - max(y)`` is then not 0 at the maximum but what rounding took
off, which exceeds any bound for large x. So each product of a program is rounded. Products of
matrices are fused explicitly before this point (`vector.contract`, `vector.fma`) and stay fused.

Who would contract: LLVM on CPUs, since IREE marks all sums and products with ``contract`` at the
end of its code generation (``AddFastMathFlags.cpp``), and Vulkan drivers, which may contract what
is not decorated ``NoContraction`` (SPIR-V specification, section 3.20). For CUDA, IREE marks
nothing, and LLVM writes instructions that round (``mul.rn``).
"""

from typing import Any

from iree.compiler import ir

# The phase at whose end the code of dispatches is in the dialect of its back end.
AFTER = "executable-targets"
_LLVM = frozenset({"llvm.fmul", "llvm.fadd", "llvm.fsub", "llvm.fneg"})
_SPIRV = frozenset({"spirv.FMul", "spirv.FAdd", "spirv.FSub"})


def forbid_contraction(module: Any) -> int:
    """Forbid contraction in all executables of `module` (an operation of IREE's bindings).

    To be called at the end of the phase AFTER. Returns the number of ops that changed.
    """
    with module.context:
        rounded = ir.Attribute.parse("#llvm.fastmath<none>")
        decoration = ir.UnitAttr.get()
    changed = 0

    def visit(op: Any) -> Any:
        nonlocal changed
        name = op.name
        if name in _LLVM:
            op.attributes["fastmathFlags"] = rounded
            changed += 1
        elif name in _SPIRV:
            op.attributes["no_contraction"] = decoration
            changed += 1
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return changed
