"""Compiles, programs and disks that fail in a known way."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest import MonkeyPatch

from pyc_mlir.compilation import attempts
from pyc_mlir.compilation import lower as lowering
from pyc_mlir.compilation.build import Plan
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.mlir_text import parse_mlir

# A program of IREE's that checks its argument: more than three elements are refused.
CHECKED = b"""func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %ok = arith.cmpi ult, %n, %c4 : index
  cf.assert %ok, "too long"
  return %a : tensor<?xf32>
}"""


def cancelling(b: Any, x: Any) -> Any:
    """silu, off by the roundings of 1: as `exp(x) - 1` is."""
    one = b.scalar(1, x)
    return b.sub(b.add(b.mul(x, b.sigmoid(x)), one), one)


def without_aggressive_fusion(patch: MonkeyPatch) -> None:
    """Let IREE fail under its aggressive fusion, so that a compile falls back to the plain one."""
    honest = attempts.build
    failed = PycError(ReasonCode.TARGET_COMPILE_FAILED, "x: expected y, got: too large")

    def build_under(plan: Plan, setting: str) -> Any:
        if setting == "aggressive":
            raise failed
        return honest(plan, setting)

    patch.setattr(attempts, "build", build_under)


def fault(patch: MonkeyPatch, old: str, new: str, only: str = lowering.ALL_KERNELS) -> None:
    """The compiler takes `old` for `new`, unless it is asked for other kernels than `only`."""
    honest = lowering._optimize

    def faulty(module: Any, options: Any, choices: Any) -> None:
        if options.kernels == only:
            wrong = parse_mlir(str(module).replace(old, new), module.context)
            for op in list(module.body.operations):
                op.operation.erase()
            for op in list(wrong.body.operations):
                module.body.append(op)
        honest(module, options, choices)

    patch.setattr(lowering, "_optimize", faulty)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Nothing writes more than so many bytes into a file.

    Nor does Python write bytecode, here and in children: it would keep a file that was cut off.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
