"""IREE's compiler alone, without any of PyC's passes: what measurements compare with."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from iree.compiler import ir

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.iree.session import IreeSession
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable


def plain_flags(target: Target, *flags: str) -> tuple[str, ...]:
    """Return the flags of IREE's own highest level for the target, and `flags`."""
    return ("--iree-opt-level=O3", *target.flags, *flags)


def compile_plain(code: bytes, flags: Sequence[str]) -> bytes:
    """Compile MLIR text or bytecode by IREE alone to a vmfb. Raises PycError."""
    with IreeSession(flags) as session:
        session.parse(code)
        session.run()
        return session.vmfb()


# A program on vmvx, IREE's interpreter: slow, and no code generator of a target in it.
#
# Comes in: MLIR that IREE accepts; goes out: an executable on the caller's own thread, to compare a
# compiled program with.

_FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
# Least of IREE's own rewriting, and none of its aggressive fusion.
_OPTIMIZATION = ("--iree-opt-level=O1",)


def interpreted(code: bytes) -> Executable:
    """Compile for ``local-sync``. Raises PycError (NO_ORACLE) where vmvx cannot compile it."""
    target = replace(Target.named("cpu"), name="vmvx", flags=_FLAGS)
    try:
        vmfb = compile_module(code, target, _OPTIMIZATION)
    except PycError as error:
        raise PycError(
            ReasonCode.NO_ORACLE,
            "contract clause `max_error`: expected a program that IREE's interpreter vmvx runs, "
            f"got: {error.message}; drop the clause",
        ) from None
    return Executable(vmfb, Device("local-sync"))


def summed_terms(code: bytes) -> int:
    """Return an upper estimate of how many terms one element of a result is summed from.

    The sum over all ops of sqrt(|a| |b| / |out|), which is k for a product [m, k] x [k, n], and of
    |in| / |out| for ops of one operand; ops of unknown sizes count as 1.
    """
    total = 0.0

    def visit(op: Any) -> Any:
        nonlocal total
        results = [n for r in op.results if (n := _elements(r.type))]
        operands = sorted(n for o in op.operands if (n := _elements(o.type)))
        if results and operands:
            out = max(results)
            both = math.sqrt(operands[-1] * operands[-2] / out) if len(operands) > 1 else 0.0
            total += max(both, operands[-1] / out, 1.0)
        return ir.WalkResult.ADVANCE

    with IreeSession() as session:
        session.parse(code)
        session.module.walk(visit)
    return max(1, math.ceil(total))


def _elements(type_: Any) -> int:
    tensor = isinstance(type_, ir.RankedTensorType) and type_.has_static_shape
    return math.prod(type_.shape) if tensor else 0
