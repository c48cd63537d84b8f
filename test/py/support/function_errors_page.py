"""docs/numerics.md: the table of functions with the errors that its stored campaign found."""

from function_errors import FUNCTIONS, RESULT, Function

from pyc_mlir.measure.records import Report
from pyc_mlir.tools.docs import gen_docs

_HEAD = """\
# How exact the elementwise functions are

The largest error of each function on a CPU, over the whole range of its operands, in ulps: the
distance of a result from the exact one, over the distance of the exact one's neighbours in the
result's type. A result that is rounded once from the exact one errs by 0.5. Each cell has what is
stated, and in parentheses what a campaign of `{total:,}` results found, by IREE's code and by PyC's
kernels ([functions.json](results/functions.json)). The slice `linalg` of
`make test-full` computes all numbers of f16 and bf16 and a sample of f32 and f64; a larger error
fails.

- Results below the smallest normal number may be zero, and operands below it may count as zero, in
  f32, f64 and bf16, which is computed in f32. `sign` gives -1, 0 or 1 always (and NaN for NaN).
  f16, which is computed in f32 too, has its subnormal numbers.
- NaN comes where numpy has it; an infinity counts as the number after the largest one. `silu`,
  `gelu` and `mish` may give 0 or NaN at minus infinity ([CPU kernels](kernels.md)); where a factor
  e^x of `silu` and `mish` is below the smallest normal number, they may be zero.
- `sin`, `cos` and `tan` reduce arguments of every size by as many digits of 2/pi as they need, on
  every target. Powers of two are exact in `exp2`, `power` and `log2`.
- The functions of two operands are compared on pairs of any numbers, of ordinary ones, of bases
  near 1 with large exponents, and of all special values.
- Where the note says "of the operand", the ulp is that of the largest operand, and not of the
  result, if that is smaller: gelu's tail and logaddexp near its zero lose digits.
- GPU targets compute what is PyC's own (`sin`, `cos`, `exp2`, `power`, f64 `tanh` and `erf`) the
  same way: f32 `sin` and `cos` to 2.5 ulps, `tan` to 5, `exp2` to 2, which a test checks where
  there is a device. For the rest their libraries answer: Vulkan allows `exp` 3 + 2 |x| ulps, and on
  targets without f64, as Vulkan, powers of f32 are the target's own, as exact as e^(y log x).
- The sign of a zero is numpy's, but `erf` of -0 may be 0.

| function | f16 and bf16 | f32 | f64 | note |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    records = Report.load(RESULT).records
    found: dict[str, float] = {}
    for r in records:
        found[r["workload"]] = max(found.get(r["workload"], 0), r["value"])
    total = sum(r["of"] for r in records)
    lines = [_line(name, function, found) for name, function in FUNCTIONS.items()]
    return _HEAD.format(total=total) + "\n".join(lines) + "\n"


def _line(name: str, function: Function, found: dict[str, float]) -> str:
    cells = [
        _cell(function, [t for t in types if f"{name} {t}" in found], name, found)
        for types in (("f16", "bf16"), ("f32",), ("f64",))
    ]
    note = "" if function.scale is None else "of the operand"
    return f"| `{name}` | {' | '.join(cells)} | {note} |"


def _cell(function: Function, types: list[str], name: str, found: dict[str, float]) -> str:
    if not types:
        return "not measured"
    most = max(function.most[t] for t in types)
    if most == 0:
        return "exact"
    return f"{most:g} ({max(found[f'{name} {t}'] for t in types):.2f})"


PAGES: gen_docs.Pages = {"numerics.md": page}
