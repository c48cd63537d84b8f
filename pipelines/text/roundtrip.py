"""Check that a module survives printing and reading back, as text and as bytecode."""

import io

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context


def roundtrip_difference(module: ir.Module | ir.OpView) -> str:
    """Return what differs after round trips through text and bytecode; '' when nothing does.

    Compared is the generic form with locations, as mlir-opt's ``--verify-roundtrip`` does. It is
    read in a context of its own: the module's would give its resources other names.
    """
    before = _shown(module)
    for form, data in (("text", before.encode()), ("bytecode", _bytecode(module))):
        try:
            source = data.decode() if form == "text" else data
            after = _shown(_read(source, module))
        except ir.MLIRError as error:
            return f"{form} round trip: the module does not read back ({error.message})"
        if after != before:
            return f"{form} round trip: {_first_difference(before, after)}"
    return ""


def _read(source: str | bytes, like: ir.Module | ir.OpView) -> ir.Module | ir.OpView:
    context = new_context()
    context.allow_unregistered_dialects = like.context.allow_unregistered_dialects
    if isinstance(like, ir.Module):
        return ir.Module.parse(source, context)
    return ir.Operation.parse(source, context=context)


def _shown(module: ir.Module | ir.OpView) -> str:
    return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)


def _bytecode(module: ir.Module | ir.OpView) -> bytes:
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


def _first_difference(before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    for number, (old, new) in enumerate(pairs, start=1):
        if old != new:
            return f"line {number}: expected `{old.strip()}`, got `{new.strip()}`"
    return "expected as many lines as were written"
