"""Compare a traced program with the function that it was made of, run by numpy.

The numpy references judge a program from the pyc module on: a front end that records something else
than the function computes is right by them. So a compile gives the inputs of its samples to the
function itself too, and its answers are compared with those of the references, within the
tolerances of dialects/numerics/rounding.py; integers and booleans must be equal. What
follows from floats that an integer type does not hold is left out: numpy leaves it to the machine.

The function runs once for each sample, and a second time where it disagrees: one that does not
repeat itself is no reference. Under `max_error`, what it does besides happens as often; a
self-check leaves out a function with such effects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import ExpectedResult, Sample, compare, make_inputs
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.numerics.rules import NUMPY_RULES
from pyc_mlir.dialects.numerics.uncertain import interpret_uncertain
from pyc_mlir.dialects.types import DTYPES, accumulator
from pyc_mlir.frontends.python.recording import Effects
from pyc_mlir.frontends.python.trace import NumpyCall, bind, by_numpy
from pyc_mlir.frontends.sources import Function, Inputs, Loaded, Source, Trace

_BF16 = DTYPES["bf16"]
_MESSAGE_CHARACTERS = 200


@dataclass(frozen=True)
class OwnFunction:
    """A function of arrays that a program is made of: how numpy runs it, how to trace it.

    effects: gives, once it was traced, what a run does beside computing results; '' for nothing.
    """

    call: NumpyCall
    effects: Callable[[], str]
    load: Callable[[ir.Context], Loaded]


def own_function(source: Source, inputs: Inputs) -> OwnFunction | None:
    """Return the function that is a source of `compile`; None for any other kind of source."""
    if not isinstance(source, Trace | Function):
        return None
    load = partial(source.load, inputs)
    if isinstance(source, Trace):
        traced = source.traced
        return OwnFunction(traced.call, lambda: traced.effects, load)
    function = source.function
    call = by_numpy(function, bind(function, tuple(inputs or ()), {}))
    return OwnFunction(call, Effects(function).found, load)


def agreement(function: OwnFunction, signature: Signature, samples: Sequence[Sample]) -> str:
    """Return what the comparison with samples of the references found, as a sentence of evidence.

    Raises PycError (TRACE_MISMATCH) where function and trace differ.
    """
    agreed, notes = 0, []
    for sample in samples:
        inputs = make_inputs(signature, sample.seed, sample.sizes)
        found = _judged(function, inputs, sample.outputs)
        if found.wrong:
            raise _mismatch(sample, found.wrong)
        agreed += found.agrees
        notes += [f"sample {sample.seed}: {found.reason}"] if found.reason else []
    agree = f"agrees with {agreed} of {len(samples)} samples"
    return "; ".join([f"the function itself, run by numpy, {agree}", *notes])


@dataclass(frozen=True)
class _Found:
    """The outcome of one sample: a difference, agreement, or neither; what was not compared."""

    wrong: str = ""
    reason: str = ""
    agrees: bool = False


def _judged(
    function: OwnFunction, inputs: Sequence[np.ndarray], expected: Sequence[ExpectedResult]
) -> _Found:
    """Compare; where that fails, without conversions, then with wide inputs; see if it repeats."""
    call, reason = function.call, ""
    try:
        got = _answer(call, inputs)
        wrong = _difference(got, expected)
        if wrong:
            expected, reason = _without_conversions(function, inputs, expected)
            wrong = _difference(got, expected) if reason else wrong
        if not wrong:
            return _Found(reason=reason, agrees=True)
        if any(a.dtype != accumulator(a.dtype) for a in inputs) and not _difference(
            _answer(call, [a.astype(accumulator(a.dtype)) for a in inputs]), expected, narrow=True
        ):
            # numpy adds 16-bit floats in 16 bits, which is further off than any program.
            return _Found(reason=reason, agrees=True)
        again = _answer(call, inputs)
    except Exception as error:  # noqa: BLE001  (the user's own code; the reason is reported)
        message = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
        return _Found(reason=f"numpy does not run it ({' '.join(message.split())})")
    if not _same(got, again):
        return _Found(reason="not compared, since it answers equal inputs differently")
    return _Found(wrong)


def _without_conversions(
    function: OwnFunction, inputs: Sequence[np.ndarray], expected: Sequence[ExpectedResult]
) -> tuple[list[ExpectedResult], str]:
    """Leave open what follows from floats out of an integer type's range; say how much, if any."""
    with new_context() as context, ir.Location.unknown():
        module = function.load(context).module
        assert module is not None, "a function is traced to a pyc module"
        found = interpret_uncertain(module, inputs, rules=NUMPY_RULES)
    opened, count = [], 0
    for want, own in zip(expected, found, strict=True):
        lost = want.compared & np.isinf(own.deviation)
        opened.append(replace(want, tolerance=np.where(lost, np.float32(np.inf), want.tolerance)))
        count += int(lost.sum())
    reason = f"not compared in {count} elements, which numpy's conversions out of range decide"
    return opened, reason if count else ""


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
