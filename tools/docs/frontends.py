"""docs/frontends.md: what can be traced and imported, from the front ends' tables of handlers."""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyc_mlir import nn
from pyc_mlir.frontends.onnx import bounded
from pyc_mlir.frontends.onnx import importer as onnx_import
from pyc_mlir.frontends.onnx.frame.handler import HANDLERS
from pyc_mlir.frontends.onnx.model import NEWEST, OLDEST
from pyc_mlir.frontends.python import trace
from pyc_mlir.frontends.python.numpy_protocol import FUNCTIONS, NEAREST, UFUNCS
from pyc_mlir.frontends.stablehlo.handlers import HANDLERS as STABLEHLO
from pyc_mlir.frontends.stablehlo.regions import REGIONED
from pyc_mlir.frontends.torch.frame.handler import HANDLERS as TORCH
from pyc_mlir.frontends.torch.ops import creation
from pyc_mlir.measure.records import Report

# What the importer of StableHLO handles besides its table of handlers.
_CONTROL = ("case", "composite", "constant", "custom_call", "get_dimension_size", "if", "while")
_PAGE = """\
# Front ends

`pyc_mlir.compile` takes a Python function in numpy style, a PyTorch module or exported program,
an ONNX model (a path, bytes or a proto), MLIR (a path, text or a module), what `jax.export` gives,
and finds out itself which it is. MLIR with pyc ops takes PyC's pipeline, and so does StableHLO,
linalg or TOSA that can be [raised](#stablehlo-linalg-tosa) to pyc ops; any other module that IREE's
input stage accepts enters at IREE. JAX functions have [a page of their own](jax.md).

## numpy

{trace}

Captured arrays, globals and attributes are read when the function is traced: they are constants
of the program. What `compile` returns keeps their values. A `jit` function compares them at each
call, and is compiled again where one has changed: variables that are bound anew, attributes and
elements of captured objects, lists and dicts, contents of the four smallest arrays of up to 1
KiB, and torch tensors. Each time is a log record of `pyc_mlir.jit`, the eighth a warning. That
takes 1 us a call for a function with two arrays, 3 us for an object with 36 of them (a call takes
some 50 us on the same machine). Contents of larger arrays, and what `pyc_mlir/util/captures.py`
lists as not followed, are not compared: after such a change call `cache_clear()` of the `jit`
function, or pass what changes as an argument.

Python's operators, indexing with integers, slices, `...` and `None`, and the arrays' methods are
recorded as well as these. Everything else is an error (`UNTRACEABLE`) that shows the line,
also where Python or a library refuses a traced array by its type. A library that asks a size of a
dynamic dimension for its type (`np.fft.fftfreq(x.shape[0])`) may raise an error of its own; so does
what another thread does to traced arrays.

An integer index out of range is an error: while tracing, or when the program runs where the
dimension is dynamic (`x[5]`, `x[-1]`). Index arrays differ from numpy: where the array is traced,
or the dimension is dynamic, indices out of range are clamped into it and raise nothing.

`//`, `%`, `np.divmod`, `np.fmod` and `np.remainder` of floats go by the exact remainder, as numpy
does (`1.0 // 0.1` is 9); f64 is refused, for which IREE's CPU code has no such function.

Sizes of dynamic dimensions may be computed with: `+`, `-`, `*` of integers and sizes, `//` and `%`
by positive integers. The results are entries of shapes (`np.broadcast_to(row, (n + 1, 4))`),
lengths (`np.arange(n // 2, like=x)`, `nn.arange`, `nn.linspace`), operands beside arrays, and,
where they come from the dimension itself, bounds of its slices: `x[: n // 2]`, `x[n - 3 :]`. A
length below 0 is an error when the program runs; `x[: n - 3]` is `x[:-3]`, which differs from numpy
where n < 3.

The logger `pyc_mlir.trace` warns, with the line, of arrays that become f64 because a captured array
or a number of numpy's (`np.sqrt(2)`) is, and of random numbers drawn from the generators that a
process shares while a function is traced: they are constants of the program.

Each function below is compared with numpy itself in PyC's tests: all pairs of i8, the ends of the
range of every other type, infinities, NaN, zeros of both signs, Python's and numpy's scalars. Where
numpy's answer is its own (or C leaves it open) PyC differs or refuses:

- the sign of a zero that `np.maximum`, `np.minimum`, `np.fmax`, `np.fmin` and `np.clip` choose
  among 0.0 and -0.0, and of a zero in sums and products of arrays, may be the other one;
- floats become integers toward zero, the nearest integer of the type where none fits, 0 for NaN;
  numpy leaves what does not fit to the machine. Integers wrap around as in numpy, `x // 0` and
  `x % 0` are 0;
- `np.reciprocal` of integers is refused, since numpy's value for 0 depends on the machine; so are
  integer powers of traced exponents, and Python numbers that an element type does not hold
  (numpy compares with them, and refuses them elsewhere);
- 16-bit floats are summed in f32, where numpy rounds partial sums, so that intermediate overflow
  may differ. bf16, which numpy does not know, takes part as f16 does beside Python's numbers, and
  beside other arrays or scalars of numpy only where they have a type in common.

Under `max_error` [the function itself](contracts.md#comparing-with-a-reference) is compared with
its trace.

Element types are MLIR's names, whose numbers count bits: `spec("i8", (4,))` has a byte an element.
numpy's codes (`"i4"`, `"<f8"`), which count bytes, are refused there; inside of functions,
`x.astype("f8")` is numpy's. Sizes of dynamic dimensions have no value while tracing:
`np.arange(x.shape[0])` is `np.arange(x.shape[0], like=x)` or `pyc_mlir.nn.arange(x.shape[0])`.

ufuncs: {ufuncs}.

functions: {functions}.

What the array API standard names beyond these, and other functions that are often asked for, is
refused with the nearest equivalent:

| numpy | instead |
|---|---|
{nearest}

## nn

`pyc_mlir.nn` has what numpy lacks. On numpy arrays these compute the reference at once.

| function | computes |
|---|---|
{nn}

## ONNX

{onnx}

Opsets {first} to {last}; older models pass through ONNX's own version converter first. A model with
unsupported nodes is refused with a list of all of them.

| operator | imported as |
|---|---|
{handlers}

### What is refused

Of the {total} node cases of the onnx wheel, {equal} are imported and right, {others} are of
sequences and optional values, and {refused} are refused, by these reasons; none is wrong. With a
name in place of every size of the inputs {dynamic} are right, the others refused. The last column
counts the cases that plain IREE 3.13 imports, compiles and computes right (it was not asked about
element types that PyC lacks). [The run](results/onnx-nodes.json) names each case.

| code | because of | cases | plain IREE |
|---|---|---|---|
{refusals}

Results whose sizes depend on data follow one rule. {bounded} `NonZero`, `Unique`, `Compress` by a
condition that the model computes, and masks as indices are refused, with `UNSUPPORTED_ATTRIBUTE`.
Where their inputs are known, all of them are computed at import.

## PyTorch

[PyTorch models](pytorch.md) tells how to compile them. Below is each ATen overload with a handler;
what has none is decomposed by torch first, and what is left then is refused with a list of all of
it. Random operators are refused: {random}.

| overloads | imported as |
|---|---|
{torch}

## StableHLO, linalg, TOSA

StableHLO text and the portable artifacts of `jax.export` are raised to pyc ops, operation by
operation, and so is linalg on tensors of static shape; TOSA goes by way of linalg, through MLIR's
own passes. Then PyC's fusion, kernels and memory plan apply. A program is raised as a whole or not
at all: half of it at IREE would cost copies at the border and hide half of the memory plan. What is
not raised enters at IREE as it is, and `unraised` of its report lists the operations because of
which. The decision `raise` offers both ways to the policy; the raised one comes first, since
nothing but IREE's own code is left of PyC in the other.

- Functions called are inlined, to 64 calls within each other and 200,000 operations in all.
- Loops whose condition is known at import are unrolled, up to 20,000 operations. All branches of an
  `if` or `case` that is not known are computed, and one is selected.
- `stablehlo.composite` of the names `pyc.softmax`, `pyc.log_softmax`, `pyc.layer_norm`,
  `pyc.rms_norm`, `pyc.gelu`, `pyc.attention` and `chlo.top_k` is one op; others are imported by
  their decomposition.
- Regions of `reduce`, `reduce_window`, `scatter` and `select_and_scatter` must be one operation on
  their two arguments; argmax and argmin are found out by what their region computes.
- Of linalg, named operations become generic ones. Loops are indexed by themselves: elementwise
  bodies, reductions by one operation, contractions. Windows (convolutions, pooling), bodies with
  two results (argmax) or with `tensor.extract`, and dynamic shapes stay foreign.
- Artifacts are bytecode, which damage may turn against the process that reads it: a worker does.

StableHLO operations: {stablehlo}.

## What breaks the graph

Every import has an `ImportReport` (`pyc_mlir/artifact/import_report.py`), which is data and has a
JSON form. `pyc-explain MODEL` shows it without compiling
(`pyc_mlir.compilation.lower.report_import` in Python); of a program it stands in
`program.stats().imported`, in the artifact and in `pyc-explain PROGRAM.vmfb`; of what is refused in
`error.report` (`UnsupportedModel`), also where a worker process has read it.

```
$ pyc-explain model.onnx
model.onnx: 1 of 4 nodes (25%, 16% of the flops) can be imported, 1 were not tried; breaks by
family: rnn 1 (LSTM 1); tensor 1 (NonZero 1); the first at model.onnx:1
```

- `score` is the share that can be compiled: of the nodes of an ONNX model that is refused, else of
  the ops of the program, constants aside. `flop_score` is the same share of the flops, where shapes
  are static and each op's work is known; refused nodes count by the shapes that ONNX infers. A
  program is compiled as a whole, so one that compiles has a score of 1, and a break is an error.
- `where` counts what PyC compiles, what IREE alone compiles (`iree`: the ops of a module that
  enters at IREE), what is refused, and what was not tried since it needs the result of a break.
- `breaks` has each with its op, family, reason code and place; `by_op` and `by_family` count them.
  The families of ONNX's ops are those of its own definitions, those of other domains the domain.
- `first` is the place of the first break: `model.onnx:12` is node 12, `model.py:12` a line. Tracing
  a Python function ends at its first break, and what would have come after is not known: its score
  and `untried` are None.

The report of a program follows from its graph alone: it is the same for each model of that graph.
"""


_NODES = Path(__file__).resolve().parents[2] / "docs" / "results" / "onnx-nodes.json"


def _refusals() -> dict[str, Any]:
    """The counts of the stored run of all node cases, and a row for each reason of a refusal."""
    records = Report.load(_NODES).records
    counts = {(r["workload"], r["metric"]): r["value"] for r in records}
    plain = {kind: counts["as they are", kind] for kind in ("equal", "refused", "not tensors")}
    peer = {r["workload"]: r for r in records if r["candidate"] == "plain IREE"}
    rows = []
    for row in records:
        if row["candidate"] == "pyc" and "cases" in row:
            code, _, why = row["workload"].partition(": ")
            right = peer.get(row["workload"])
            shown = "" if right is None else len(right["equal"])
            rows.append(f"| `{code}` | {why} | {row['value']} | {shown} |")
    return {
        "total": sum(plain.values()),
        "equal": plain["equal"],
        "refused": plain["refused"],
        "others": plain["not tensors"],
        "dynamic": counts["with dynamic sizes", "equal"],
        "refusals": "\n".join(rows),
        "bounded": " ".join((inspect.getdoc(bounded) or "").partition("\n\n")[2].split()),
    }


def page() -> str:
    """The whole page."""
    functions = {_numpy_name(f) for f in FUNCTIONS if f.__module__.startswith("numpy")}
    handlers = [f"| {name} | {_first(HANDLERS[name])} |" for name in sorted(HANDLERS)]
    return _PAGE.format(
        trace=_paragraph(trace),
        ufuncs=_listed(f"np.{u.__name__}" for u in UFUNCS),
        functions=_listed(functions),
        nearest="\n".join(f"| `{name}` | {what} |" for name, what in sorted(NEAREST.items())),
        nn="\n".join(f"| `{_call(name, f)}` | {_first(f)} |" for name, f in _nn_functions()),
        onnx=_paragraph(onnx_import),
        **_refusals(),
        first=OLDEST,
        last=NEWEST,
        handlers="\n".join(handlers),
        stablehlo=_listed(sorted({*STABLEHLO, *REGIONED, *_CONTROL})),
        torch="\n".join(_torch_rows()),
        random=_listed(n for n, h in TORCH.items() if h is creation.random),
    )


def _torch_rows() -> list[str]:
    """A row for each handler, with the overloads that it imports."""
    overloads: dict[Callable[..., Any], list[str]] = {}
    for name, handler in TORCH.items():
        overloads.setdefault(handler, []).append(name.removeprefix("aten."))
    rows = [(", ".join(f"`{n}`" for n in sorted(v)), _first(h)) for h, v in overloads.items()]
    return [f"| {names} | {said} |" for names, said in sorted(rows)]


def _nn_functions() -> list[tuple[str, Callable[..., Any]]]:
    found = inspect.getmembers(nn, inspect.isfunction)
    return [(n, f) for n, f in found if not n.startswith("_") and f.__module__ == nn.__name__]


def _call(name: str, function: Callable[..., Any]) -> str:
    """The call with its defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return name + str(inspect.Signature(bare))


def _numpy_name(function: Callable[..., Any]) -> str:
    module = "np.linalg" if function.__module__.startswith("numpy.linalg") else "np"
    return f"{module}.{function.__name__}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _first(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring on one line, as a table's cell."""
    text = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def _paragraph(module: Any) -> str:
    """A module's docstring without its example blocks."""
    parts = (inspect.getdoc(module) or "").split("\n\n")
    return "\n\n".join(p for p in parts if not p.startswith("    "))
