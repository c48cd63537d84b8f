"""Cases of torch's own operator tests (`OpInfo`), run by torch and by PyC's importer.

`outcome` exports one sample as a program, imports it, and evaluates it by the numpy references:
what the handlers say is compared with torch itself, without a compile.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.artifact.import_report import UnsupportedModel
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.torch.export import TorchModel, from_torch
from pyc_mlir.frontends.torch.importer import import_torch
from pyc_mlir.torch.tensors import array_of

EQUAL, REFUSED, UNEXPORTED = "equal", "refused", "not exported"
# Samples that torch itself gives other answers for each time, or whose results are not defined.
UNDEFINED = ("empty", "new_empty", "nn.functional.dropout", "as_strided", "kthvalue")
# Of the largest result, by element type: what sums of a few hundred terms round to.
_TOLERANCES = {"float64": 1e-9, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Outcome:
    """What became of a sample: EQUAL, REFUSED, UNEXPORTED, or how it differs; and why."""

    kind: str
    why: str = ""


def samples(info: Any, dtype: Any, count: int | None, seed: int = 0) -> Iterator[Any]:
    """Samples of an OpInfo, a seeded choice of `count` of them, or all."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(seed)
    found = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    random.Random(seed).shuffle(found)
    return iter(found if count is None else found[:count])


def outcome(info: Any, sample: Any) -> Outcome:
    """Export, import and evaluate one sample; compare with torch."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch.utils import _pytree as pytree  # pyright: ignore[reportMissingImports]

    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i].detach().clone() for i in places]

    def function(*given: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return info.op(first, *args, **kwargs)

    want = pytree.tree_leaves(function(*[t.clone() for t in tensors]))
    want = [w for w in want if isinstance(w, torch.Tensor)]
    try:
        model = from_torch(function, tuple(tensors))
    except PycError as error:
        return Outcome(UNEXPORTED, error.message)
    return evaluated(model, tensors, want)


def evaluated(
    model: TorchModel, tensors: list[Any], want: list[Any], exact: bool = False
) -> Outcome:
    """Import a program, evaluate it by the references and compare the results with torch's."""
    try:
        module = import_torch(model)
    except UnsupportedModel as error:
        return Outcome(REFUSED, ", ".join(f"{f.op}: {f.why}" for f in error.report.breaks))
    except PycError as error:
        return Outcome(REFUSED, error.message)
    got = interpret(module, [array_of(t) for t in tensors])
    results = list(got) if isinstance(got, (tuple, list)) else [got]
    # What the program writes comes behind its results.
    for number, (found, expected) in enumerate(zip(results, want, strict=False)):
        wrong = difference(np.asarray(found), array_of(expected.detach()), exact)
        if wrong:
            return Outcome(f"result {number}: {wrong}")
    return Outcome(EQUAL) if len(results) >= len(want) else Outcome("fewer results")


def difference(got: np.ndarray, want: np.ndarray, exact: bool = False) -> str:
    """How two results differ; empty where they agree, to the last bit if `exact`."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"expected {want.dtype}{want.shape}, got {got.dtype}{got.shape}"
    if want.dtype.name not in _TOLERANCES:
        return "" if np.array_equal(got, want) else "other integers"
    one, other = got.astype(np.float64), want.astype(np.float64)
    if exact:
        return "" if np.array_equal(one, other, equal_nan=True) else f"{one} for {other}"
    finite = np.abs(other[np.isfinite(other)])
    reach = _TOLERANCES[want.dtype.name] * max(1.0, finite.max(initial=0.0))
    if np.allclose(one, other, rtol=reach, atol=reach, equal_nan=True):
        return ""
    with np.errstate(invalid="ignore"):
        return f"off by {np.nanmax(np.abs(one - other)):.3g}"
