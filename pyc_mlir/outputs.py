"""May a call write into these arrays? What `out=` and `donate=` must satisfy.

An output's memory is written while inputs are still being read, and IREE does not look for
overlaps (its `hal.tensor.alias` leaves them to the caller). So an output that shares memory with
an input or another output is refused.
"""

from collections.abc import Sequence
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import dtype_name
from pyc_mlir.guards import Signature
from pyc_mlir.iree.arena_call import ArenaCall, Launch
from pyc_mlir.iree.array import Array, Spec, overlap


def check_outputs(
    out: Any,
    launch: Launch,
    inputs: Sequence[Array],
    signature: Signature,
    entry: ArenaCall | None,
) -> list[Array | None]:
    """`out` as one array or None for each result. Raises PycError:

    NO_ARENA_ENTRY, ARGUMENT_COUNT, BAD_ARGUMENT (no array of the device), ARGUMENT_DTYPE,
    ARGUMENT_SHAPE, OUTPUT_OVERLAP; the message names the output.
    """
    if entry is None:
        raise PycError(
            ReasonCode.NO_ARENA_ENTRY,
            "out: expected a program that can write into memory of its caller, got one without "
            "such an entry; its decision `arena-entry` says why",
        )
    given = [out] if isinstance(out, Array) else out
    if not isinstance(given, (list, tuple)):
        raise _not_here("out", out, entry)
    names = [a.name for a in signature.outputs]
    if len(given) != len(names):
        raise PycError(
            ReasonCode.ARGUMENT_COUNT,
            f"out: expected {len(names)} arrays ({', '.join(names)}), got {len(given)}",
        )
    specs = launch.specs
    for number, (name, array) in enumerate(zip(names, given, strict=True)):
        if array is not None:
            _check_spec(f"out `{name}`", array, specs.get(number), entry)
    _check_overlaps(names, given, inputs, signature)
    return list(given)


def _check_spec(where: str, array: Any, spec: Spec | None, entry: ArenaCall) -> None:
    if spec is None:
        raise PycError(
            ReasonCode.NO_ARENA_ENTRY,
            f"{where}: expected None, since its size is not known before the call or it is an "
            "input handed back, got an array",
        )
    if not isinstance(array, Array) or array.device is not spec[2]:
        raise _not_here(where, array, entry)
    if array.dtype != spec[1]:
        raise PycError(
            ReasonCode.ARGUMENT_DTYPE,
            f"{where}: expected element type {dtype_name(spec[1])}, got {dtype_name(array.dtype)}",
        )
    if array.shape != spec[0]:
        raise PycError(
            ReasonCode.ARGUMENT_SHAPE, f"{where}: expected shape {spec[0]}, got {array.shape}"
        )


def _not_here(where: str, got: Any, entry: ArenaCall) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT,
        f"{where}: expected an Array on {entry.device!r}, got {got!r:.100}; make one with "
        "`to_device`, or take an earlier result",
    )


def _check_overlaps(
    names: Sequence[str],
    given: Sequence[Array | None],
    inputs: Sequence[Array],
    signature: Signature,
) -> None:
    taken = [(f"input `{a.name}`", x) for a, x in zip(signature.inputs, inputs, strict=True)]
    for name, array in zip(names, given, strict=True):
        if array is None:
            continue
        for other, memory in taken:
            if overlap(array, memory):
                raise PycError(
                    ReasonCode.OUTPUT_OVERLAP,
                    f"out `{name}`: expected memory of its own, got memory of {other}",
                )
        taken.append((f"output `{name}`", array))


def refuse_donation(donate: Sequence[int], signature: Signature) -> None:
    """Raise PycError (DONATION_UNSAFE) unless nothing is donated."""
    for number in donate:
        if type(number) is not int or not 0 <= number < len(signature.inputs):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"donate: expected numbers of inputs below {len(signature.inputs)}, got {number!r}",
            )
        raise PycError(
            ReasonCode.DONATION_UNSAFE,
            f"donate: expected a proof that `{signature.inputs[number].name}` is read before an "
            "output is written to its memory, got none; call without `donate`",
        )
