"""docs/frontends.md: what can be traced and imported, from the front ends' tables of handlers."""

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyc_mlir import nn
from pyc_mlir.frontends.onnx import importer as onnx_import
from pyc_mlir.frontends.onnx.islands import TESTED
from pyc_mlir.frontends.onnx.model import NEWEST, OLDEST
from pyc_mlir.frontends.onnx.ops.node import HANDLERS
from pyc_mlir.frontends.python import trace
from pyc_mlir.frontends.python.numpy_protocol import FUNCTIONS, NEAREST, UFUNCS
from pyc_mlir.frontends.stablehlo.operations import HANDLERS as STABLEHLO
from pyc_mlir.frontends.stablehlo.operations import REGIONED
from pyc_mlir.frontends.torch import ops as torch_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.torch.ops.handler import HANDLERS as TORCH
from pyc_mlir.frontends.torch.ops.handler import RANDOM
from pyc_mlir.measure.records import Report

# What the importer of StableHLO handles besides its table of handlers.
_CONTROL = ("case", "composite", "constant", "custom_call", "get_dimension_size", "if", "while")
_PAGE = """\
# Front ends

`pyc_mlir.compile` accepts a Python function in numpy style, a PyTorch module or exported program,
an ONNX model (a path, bytes or a proto), MLIR (a path, text or a module) and the result of
`jax.export`; it detects the kind itself. MLIR with pyc ops is compiled by PyC's pipeline. So is
StableHLO, linalg or TOSA that can be [raised](#stablehlo-linalg-tosa) to pyc ops. Any other module
that IREE's input stage accepts is compiled by IREE. A module's entry is `main`, its only public
function, or the one that `function="name"` (`--function`) names; the others become private then.
JAX functions are described [here](jax.md).

## numpy

{trace}

Captured arrays, globals and attributes are read when the function is traced and become constants
of the program. A program that `compile` returned keeps these values. A `jit` function compares
them at each call: while it is traced, PyC notes which Python code runs, and each call compares
what that code can reach by the names in it.

- Globals, variables of enclosing functions, attributes of modules, context variables: whether they
  are the same object, or a number or text of the same type and bits.
- Objects of classes, dataclasses, slots and `SimpleNamespace` included: the attributes that the
  code names, and all of them where it uses `vars`, `__dict__` or `getattr` with a computed name;
  the object's class.
- Classes and their bases: the attributes and methods that the code names or calls.
- Lists, tuples, dicts, sets, `deque` and the other types of `collections`, subclasses included:
  elements, keys and their order.
- Functions and methods that ran, also below `functools.wraps`, `partial`, properties and special
  methods (`__add__`, `__iter__`, `with`): code, default values, variables of enclosing functions;
  of `lru_cache` whether it was cleared.
- Arrays: whether they are the same object; the contents of the four smallest of up to 1 KiB.
- `bytearray`, `array.array`, `memoryview`: contents of up to 1 KiB.

If one of these has changed, the function is traced again, and compiled again if that gives another
module. Each change is a log record of `pyc_mlir.jit`, the eighth one a warning. The comparison
takes 1 to 1.5 us a call for a function with two arrays or a list of twelve, and 3.5 us for
an object with twelve layers of two arrays (the call itself takes about 50 us on the same machine).

Not compared are the contents of larger arrays and the shape of an array that is changed in place;
files, the environment, clocks, random numbers and iterators that move; packages (numpy, torch, JAX,
PyC, the standard library) and objects of their classes, other than the types named above; a class
whose bases are replaced; containers of more than 1,024 elements, and what is beyond 4,096 values in
all (a warning names these). After a change of such a value call `cache_clear()` of the `jit`
function, or pass the value as an argument.

`jit(audit=n)` finds out whether a function reads such state: every n-th call traces the function
again and compares the module, its constants included, with the one that was compiled. If they
differ, the call is an error (`STALE_CAPTURES`) that shows the first operation that differs and its
line.

Python's operators, indexing with integers, slices, `...` and `None`, and the arrays' methods are
traced, and so are the functions listed below. Everything else is an error (`UNTRACEABLE`) that
shows the line, also if Python or a library rejects a traced array because of its type; an argument
that fails a check of PyC's own is refused with that check's code (`BAD_ARGUMENT`, `INVALID_IR`). A
library that checks the type of a dynamic dimension's size (`np.fft.fftfreq(x.shape[0])`) may raise
its own error. Using traced arrays in another thread is an error too.

A program gives its results as the function returns them, in lists, tuples and dicts, also after
`save` and `load`: `{{"y": x}}` stays a dict with one entry. A named tuple becomes a tuple. A dict
with a key other than a text, a number, a bool or `None` does not keep its structure: one array
comes alone, and several come as a tuple.

Masked arrays (`np.ma`) and `np.matrix` are refused as arguments and as captured values
(`BAD_ARGUMENT`): PyC would lose the mask, or take `*` for another operation.

An integer index out of range (`x[5]`, `x[-1]`) is an error: while tracing, or when the program
runs if the dimension is dynamic. Index arrays differ from numpy: if the index array is traced or
the dimension is dynamic, indices out of range are clamped without an error.

`//`, `%`, `np.divmod`, `np.fmod` and `np.remainder` of floats use the exact remainder, as numpy
does (`1.0 // 0.1` is 9). f64 is refused, because IREE's CPU code has no such function for it.

Sizes of dynamic dimensions can be used in arithmetic: `+`, `-`, `*` of integers and sizes, `//`
and `%` by positive integers. The results may be used as entries of shapes (`np.broadcast_to(row,
(n + 1, 4))`), as lengths (`np.arange(n // 2, like=x)`, `nn.arange`, `nn.linspace`) and as
operands with arrays. Sizes of a dimension may also bound slices of the same dimension: `x[: n //
2]`, `x[n - 3 :]`. A length below 0 is an error when the program runs. `x[: n - 3]` means
`x[:-3]`, which differs from numpy for n < 3.

The logger `pyc_mlir.trace` warns, with the line, in two cases: if arrays become f64 because a
captured array or a numpy number (`np.sqrt(2)`) is f64, and if a function draws random numbers
from process-wide generators while it is traced, because the numbers become constants of the
program.

PyC's tests compare each function below with numpy: all pairs of i8, the ends of the range of
every other type, infinities, NaN, zeros of both signs, Python's and numpy's scalars. PyC differs
or refuses where numpy's result depends on the machine or on numpy's own choice:

- The sign of a zero may differ in the results of `np.maximum`, `np.minimum`, `np.fmax`, `np.fmin`
  and `np.clip` for 0.0 and -0.0, and in sums and products of arrays.
- Floats are converted to integers toward zero; values out of range give the nearest integer of
  the type, NaN gives 0. In numpy these results depend on the machine. Integers wrap around as in
  numpy; `x // 0` and `x % 0` are 0.
- `np.reciprocal` of integers is refused, since numpy's value for 0 depends on the machine. Also
  refused are integer powers with traced exponents, and Python numbers that do not fit the element
  type: numpy raises for them too, or wraps them around (`np.where`). In comparisons and as bounds
  of `np.clip` they count with their own value, as in numpy.
- 16-bit floats are summed in f32, while numpy rounds partial sums, so intermediate overflow may
  differ. bf16, which numpy does not know, follows the rules of f16 with Python numbers; with
  other numpy arrays or scalars it needs a common type.

Under `max_error` [the function itself](contracts.md#comparing-with-a-reference) is compared with
its trace.

Element types have MLIR's names, whose numbers count bits: `spec("i8", (4,))` has one byte per
element. numpy's codes (`"i4"`, `"<f8"`), which count bytes, are refused there; inside functions
`x.astype("f8")` has numpy's meaning. Sizes of dynamic dimensions have no value while tracing:
instead of `np.arange(x.shape[0])` write `np.arange(x.shape[0], like=x)` or
`pyc_mlir.nn.arange(x.shape[0])`.

ufuncs: {ufuncs}.

functions: {functions}.

These functions, from the array API standard and others in frequent use, are refused; the error
names the nearest equivalent:

| numpy | instead |
|---|---|
{nearest}

## nn

`pyc_mlir.nn` contains functions that numpy lacks. Called with numpy arrays, they compute the numpy
reference at once.

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

Of the {total} node cases of the onnx wheel, {equal} are imported with correct results, {peer} give
the results of onnxruntime where those of the case differ, {others} use sequences or optional
values, and {refused} are refused for the reasons below; none gives a wrong result. With every input
size dynamic, {dynamic} cases are correct and the others are refused. The last column counts the
cases that plain IREE 3.13 imports, compiles and computes correctly (cases with element types that
PyC lacks were not run there). [The stored
run](results/onnx-nodes.json) names each case.

| code | because of | cases | plain IREE |
|---|---|---|---|
{refusals}

Results whose sizes depend on data follow one rule. {bounded} `NonZero`, `Unique`, `Compress` with a
condition that the model computes, and masks as indices are refused with `UNSUPPORTED_ATTRIBUTE`. If
their inputs are constants, all of them are computed at import.

### Islands

With the option `islands` (`--islands`) a node that PyC refuses may be lowered to linalg by
torch-mlir, and IREE compiles it as a function of its own between PyC's parts. Only operators of a
tested list may: {islands}. A form of them that PyC imports itself is never an island. torch-mlir
may abort, so that it runs in a process of its own, about a second for each distinct node; its end
is the error `NATIVE_CRASH` with the node's name. Each island is a graph break: `islands` of the
report lists them, the score counts them, and `pyc-explain` shows them. Nodes with operands of
unsigned integers, and results that torch-mlir cannot lower to one function of linalg, are refused.

### Indices out of range

In ONNX and PyTorch an index outside of its axis is an error. If the indices of a gather, scatter,
embedding or `x[i]` are an argument (also by way of integer casts, reshapes and transposes), each
call compares the least and the greatest with the axis first, and refuses others
(`INDEX_OUT_OF_RANGE`): about 2 us for 128 ids in numpy; vectors of indices into several axes are
compared with the longest. Computed indices, and those in a branch that may not run, are clamped
or, by scatters, dropped; `clamped` of the import report counts these nodes.
`guard_indices=False` (`--no-guard-indices`) leaves the check out. In JAX they are clamped or
dropped, as JAX says.

## PyTorch

[PyTorch models](pytorch.md) describes how to compile them. The table lists each ATen overload
with a handler. torch decomposes operators without a handler first. A model in which such
operators remain is refused, and the error lists all of them. Operators that draw random numbers
({random}) draw from a seed that each call of a program of `torch.compile` is given
([how](pytorch.md#random-numbers)); in an exported program, which has no seed, they are refused.

| overloads | imported as |
|---|---|
{torch}

## StableHLO, linalg, TOSA

StableHLO text, portable artifacts of `jax.export`, and linalg on tensors of static shape are
*raised*: translated to pyc ops, operation by operation. TOSA is lowered to linalg by MLIR's own
passes first. PyC's fusion, kernels and memory plan then apply. A program is raised as a whole or
not at all, because a split program would need copies between its parts and only one part would
have a memory plan. A program that is not raised is compiled by IREE as it is, and `unraised` of
its report lists the operations that prevented it. The decision `raise` offers both ways to the
policy, the raised program first.

- Called functions are inlined, up to 64 nested calls and 200,000 operations in all.
- Loops whose condition is known at import are unrolled, up to 20,000 operations. All branches of
  an `if` or `case` with an unknown condition are computed, and one result is selected.
- A `stablehlo.composite` named `pyc.softmax`, `pyc.log_softmax`, `pyc.layer_norm`,
  `pyc.rms_norm`, `pyc.gelu`, `pyc.attention` or `chlo.top_k` becomes one op. Other composites are
  imported by their decomposition.
- Regions of `reduce`, `reduce_window`, `scatter` and `select_and_scatter` must be one operation
  on their two arguments. argmax and argmin are recognized by the body of their region.
- Named linalg operations are generalized first. Raised are elementwise bodies, reductions by one
  operation, and contractions. Windows (convolutions, pooling), bodies with two results (argmax)
  or with `tensor.extract`, and dynamic shapes are not raised.
- Artifacts are bytecode. Damaged bytecode can crash the process that reads it, so a worker reads
  it.

StableHLO operations: {stablehlo}.

## What breaks the graph

Every import creates an `ImportReport` (`pyc_mlir/artifact/import_report.py`), plain data with a
JSON form. `pyc-explain MODEL` shows it without compiling (in Python
`pyc_mlir.compilation.lower.report_import`). A program has it in `program.stats().imported`, in
the artifact and in the output of `pyc-explain PROGRAM.vmfb`. If a model is refused,
`error.report` (`UnsupportedModel`) holds it, also if a worker process read the model.

```
$ pyc-explain model.onnx
model.onnx: 1 of 4 nodes (25%, 16% of the flops) can be imported, 1 were not tried; breaks by
family: rnn 1 (LSTM 1); tensor 1 (NonZero 1); the first at model.onnx:1
```

- `score` is the share that can be compiled: of the nodes of a refused ONNX model, else of the ops
  of the program without constants. `flop_score` is the same share of the flops, if shapes are
  static and each op's work is known; refused nodes count by the shapes that ONNX infers. A
  program is compiled as a whole, so a break is an error, and a program that compiles has a score
  of 1 unless it has [islands](#islands).
- `where` counts the ops that PyC compiles, those that IREE alone compiles (`iree`), those that
  are refused, and those that were not tried because they need the result of a break.
- `breaks` lists each break with its op, family, reason code and place; `by_op` and `by_family`
  count them. The family of an ONNX op is that of its definition; for other domains it is the
  domain.
- `first` is the place of the first break: `model.onnx:12` is node 12, `model.py:12` a line.
  Tracing a Python function ends at its first break, and the rest of the function is unknown, so
  its score and `untried` are None.

The report of a program depends on its graph alone: it is the same for every model with that graph.
"""


_NODES = Path(__file__).resolve().parents[2] / "docs" / "results" / "onnx-nodes.json"


def _refusals() -> dict[str, Any]:
    """Write the counts of the stored run of all node cases, and a row for each refusal's reason."""
    records = Report.load(_NODES).records
    counts = {(r["workload"], r["metric"]): r["value"] for r in records}
    kinds = ("equal", "refused", "not tensors", "read as onnxruntime does")
    plain = {kind: counts["as they are", kind] for kind in kinds}
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
        "peer": plain["read as onnxruntime does"],
        "dynamic": counts["with dynamic sizes", "equal"],
        "refusals": "\n".join(rows),
        "bounded": " ".join(
            (inspect.getdoc(onnx_import.keeps_rows) or "").split("\n\n")[1].split()
        ),
    }


def page() -> str:
    """Write the whole page."""
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
        islands=", ".join(map(_island, sorted(TESTED))),
        stablehlo=_listed(sorted({*STABLEHLO, *REGIONED, *_CONTROL})),
        torch="\n".join(_torch_rows()),
        random=_listed(name.removeprefix("aten.") for name in RANDOM),
    )


def _island(op: str) -> str:
    """Name an operator of the list, with the attributes that it must not have."""
    unset = ", ".join(f"`{name}`" for name in sorted(TESTED[op]))
    return f"`{op}`" + (f" without {unset}" if unset else "")


def _torch_rows() -> list[str]:
    """Write a row for each handler, with the overloads that it imports."""
    overloads: dict[Callable[..., Any], list[str]] = {}
    for name, handler in TORCH.items():
        overloads.setdefault(handler, []).append(name.removeprefix("aten."))
    rows = [(", ".join(f"`{n}`" for n in sorted(v)), _first(h)) for h, v in overloads.items()]
    return [f"| {names} | {meaning} |" for names, meaning in sorted(rows)]


def _nn_functions() -> list[tuple[str, Callable[..., Any]]]:
    found = inspect.getmembers(nn, inspect.isfunction)
    return [(n, f) for n, f in found if not n.startswith("_") and f.__module__ == nn.__name__]


def _call(name: str, function: Callable[..., Any]) -> str:
    """Write the call with its defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return name + str(inspect.Signature(bare))


def _numpy_name(function: Callable[..., Any]) -> str:
    module = "np.linalg" if function.__module__.startswith("numpy.linalg") else "np"
    return f"{module}.{function.__name__}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _first(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a handler's docstring as a table's cell: what it builds."""
    text = (inspect.getdoc(function) or "").partition("\n\n")[0]
    text = re.sub(r"^(?:Build|Return) (.)", lambda m: m[1].upper(), text)
    return " ".join(text.split()).replace("|", "\\|")


def _paragraph(module: Any) -> str:
    """Return a module's docstring without its example blocks."""
    parts = (inspect.getdoc(module) or "").split("\n\n")
    return "\n\n".join(p for p in parts if not p.startswith("    "))
