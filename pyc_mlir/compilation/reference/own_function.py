"""Compare a traced program with the function that it was made of, run by numpy.

The numpy references judge a program from the pyc module on: a front end that records something else
than the function computes is right by them. So a compile gives the inputs of its samples to the
function itself too, and its answers are compared with those of the references, within the
tolerances of dialects/numerics/rounding.py; integers and booleans must be equal.

The function runs once for each sample, and a second time where it disagrees: one that does not
repeat itself is no reference. Under `max_error`, what it does besides happens as often; a
self-check leaves out a function with such effects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import ExpectedResult, Sample, compare, make_inputs
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, accumulator
from pyc_mlir.frontends.python.trace import NumpyCall, bind, by_numpy
from pyc_mlir.frontends.sources import Function, Inputs, Source, Trace
from pyc_mlir.util.captures.effects import Effects

_BF16 = DTYPES["bf16"]
_MESSAGE_CHARACTERS = 200


@dataclass(frozen=True)
class OwnFunction:
    """A function of arrays that a program is made of: how numpy runs it.

    effects: gives, once it was traced, what a run does beside computing results; '' for nothing.
    """

    call: NumpyCall
    effects: Callable[[], str]


def own_function(source: Source, inputs: Inputs) -> OwnFunction | None:
    """Return the function that is a source of `compile`; None for any other kind of source."""
    if isinstance(source, Trace):
        traced = source.traced
        return OwnFunction(traced.call, lambda: traced.effects)
    if not isinstance(source, Function):
        return None
    function = source.function
    call = by_numpy(function, bind(function, tuple(inputs or ()), {}))
    return OwnFunction(call, Effects(function).found)


def agreement(call: NumpyCall, signature: Signature, samples: Sequence[Sample]) -> str:
    """Return what the comparison with samples of the references found, as a sentence of evidence.

    Raises PycError (TRACE_MISMATCH) where function and trace differ.
    """
    others: list[str] = []
    for sample in samples:
        inputs = make_inputs(signature, sample.seed, sample.sizes)
        found = _judged(call, inputs, sample.outputs)
        if found.wrong:
            raise _mismatch(sample, found.wrong)
        others += [f"sample {sample.seed}: {found.reason}"] if found.reason else []
    agree = f"agrees with {len(samples) - len(others)} of {len(samples)} samples"
    return "; ".join([f"the function itself, run by numpy, {agree}", *others])


@dataclass(frozen=True)
class _Found:
    """The outcome of one sample: a difference, a reason why nothing was compared, or agreement."""

    wrong: str = ""
    reason: str = ""


def _judged(
    call: NumpyCall, inputs: Sequence[np.ndarray], expected: Sequence[ExpectedResult]
) -> _Found:
    """Compare once; where that fails, with wide inputs, and see whether the function repeats."""
    try:
        got = _answer(call, inputs)
        wrong = _difference(got, expected)
        if not wrong:
            return _Found()
        if any(a.dtype != accumulator(a.dtype) for a in inputs) and not _difference(
            _answer(call, [a.astype(accumulator(a.dtype)) for a in inputs]), expected, narrow=True
        ):
            # numpy adds 16-bit floats in 16 bits, which is further off than any program.
            return _Found()
        again = _answer(call, inputs)
    except Exception as error:  # noqa: BLE001  (the user's own code; the reason is reported)
        message = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
        return _Found(reason=f"numpy does not run it ({' '.join(message.split())})")
    if not _same(got, again):
        return _Found(reason="not compared, since it answers equal inputs differently")
    return _Found(wrong)


def _answer(call: NumpyCall, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Call the function with copies of the inputs, which it may change."""
    with np.errstate(all="ignore"):
        return call([a.copy() for a in inputs])


def _difference(
    got: Sequence[np.ndarray], expected: Sequence[ExpectedResult], narrow: bool = False
) -> str:
    """Return what differs, if anything.

    narrow: results may be wider than the trace's. bf16 may be anyway, which numpy does not know.
    """
    if len(got) != len(expected):
        return f"expected {len(expected)} results, got {len(got)}"
    fitted = []
    for array, want in zip(got, expected, strict=True):
        dtype = want.value.dtype
        widened = dtype != accumulator(dtype) if narrow else _BF16 in (dtype, array.dtype)
        with np.errstate(all="ignore"):
            fitted.append(array.astype(dtype) if widened else array)
    return compare(fitted, expected).wrong


def _same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs
    )


def _mismatch(sample: Sample, wrong: str) -> PycError:
    sizes = ", ".join(f"{name} = {size}" for name, size in sample.sizes.items())
    return PycError(
        ReasonCode.TRACE_MISMATCH,
        "the function itself, run by numpy: expected the answers of its trace, got for sample "
        f"{sample.seed}{f' ({sizes})' if sizes else ''}: {wrong}; report it, or compile what "
        "`trace` gives, which is compared from there on",
    )
