"""The requirements of `out=` and `donate=` arrays, so that a call may write into them.

An output's memory is written while inputs are still being read, and IREE does not look for overlaps
(its `hal.tensor.alias` leaves them to the caller). So an output that shares memory with an input or
another output is refused, but for inputs that are donated and proven to be read before
(pipelines/memory/stream_alias.py). Results are copied into arrays of numpy after the call, so
that those may overlap inputs.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import dtype_name, require_plain
from pyc_mlir.runtime.arenas import ArenaCall, CallNeeds
from pyc_mlir.runtime.array import Array, Spec, overlap, reinterpreted, require_present

# What `donate` may be: an array, say, that is false might hold a number.
NUMBERS = (tuple, list, range)


def on_host(out: Any, signature: Signature) -> tuple[Any, dict[int, np.ndarray]]:
    """`out` without its arrays of numpy (None if nothing is left), and those by their result.

    Raises PycError: ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE, BAD_ARGUMENT (read-only), or
    OUTPUT_OVERLAP.
    """
    given = [out] if isinstance(out, np.ndarray) else out
    if not isinstance(given, (list, tuple)):
        return out, {}
    hosts = {i: array for i, array in enumerate(given) if isinstance(array, np.ndarray)}
    if not hosts:
        return out, {}
    _check_count(given, signature)
    seen: list[np.ndarray] = []
    for number, array in hosts.items():
        expected = signature.outputs[number]
        _check_host(expected, array)
        if any(np.may_share_memory(array, other) for other in seen):
            raise PycError(
                ReasonCode.OUTPUT_OVERLAP,
                f"out `{expected.name}`: expected memory of its own, got memory of another output",
            )
        seen.append(array)
    memory = [None if i in hosts else array for i, array in enumerate(given)]
    return (memory if any(m is not None for m in memory) else None), hosts


def _check_host(expected: SignatureEntry, array: np.ndarray) -> None:
    where = f"out `{expected.name}`"
    require_plain(array, where)
    if array.dtype != expected.dtype:
        raise _other_dtype(where, expected.dtype, array.dtype)
    sizes = zip(expected.shape, array.shape, strict=False)
    if len(array.shape) != len(expected.shape) or any(
        isinstance(d, int) and d != size for d, size in sizes
    ):
        raise _other_shape(where, expected, array.shape)
    if not array.flags.writeable:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{where}: expected an array that can be written to, got a read-only one; make one "
            "with `np.empty`",
        )


def fill(hosts: Mapping[int, np.ndarray], values: Sequence[Any]) -> Sequence[Any]:
    """Copy results into `hosts`, the arrays of numpy by their result, which take their places.

    Raises PycError (ARGUMENT_SHAPE), before anything is copied, where a size that only the call
    knows differs.
    """
    for number, host in hosts.items():
        if host.shape != values[number].shape:
            raise _other_shape(f"out {number}", values[number].shape, host.shape)
    for number, host in hosts.items():
        np.copyto(host, np.asarray(values[number]))
    return [hosts.get(number, value) for number, value in enumerate(values)]


def check_outputs(
    out: Any,
    needs: CallNeeds,
    inputs: Sequence[Array],
    signature: Signature,
    entry: ArenaCall,
    donated: Mapping[int, tuple[int, Array]] = MappingProxyType({}),
) -> list[Array | None]:
    """`out`, with what is `donated`, as one array or None for each result. Raises PycError:

    NO_ARENA_ENTRY (a size that is not known), ARGUMENT_COUNT, BAD_ARGUMENT (no array of the
    device, or a donated one), ARGUMENT_DTYPE, ARGUMENT_SHAPE, OUTPUT_OVERLAP; the message names
    the output.
    """
    given = [out] if isinstance(out, Array) else out
    if out is None:
        given = [None] * len(signature.outputs)
    if not isinstance(given, (list, tuple)):
        raise _not_here("out", out, entry)
    _check_count(given, signature)
    names = [a.name for a in signature.outputs]
    specs = needs.specs
    for number, (name, array) in enumerate(zip(names, given, strict=True)):
        if array is not None:
            _check_spec(f"out `{name}`", array, specs.get(number), entry)
    merged = [donated[o][1] if o in donated else array for o, array in enumerate(given)]
    _check_overlaps(names, merged, inputs, signature, {o: i for o, (i, _) in donated.items()})
    return merged


def _check_count(given: Sequence[Any], signature: Signature) -> None:
    names = [a.name for a in signature.outputs]
    if len(given) != len(names):
        raise PycError(
            ReasonCode.ARGUMENT_COUNT,
            f"out: expected {len(names)} arrays ({', '.join(names)}), got {len(given)}",
        )


def _check_spec(where: str, array: Any, spec: Spec | None, entry: ArenaCall) -> None:
    if spec is None:
        raise PycError(
            ReasonCode.NO_ARENA_ENTRY,
            f"{where}: expected None, since its size is not known before the call, got an array",
        )
    if not isinstance(array, Array) or array.device is not spec[2]:
        raise _not_here(where, array, entry)
    if array.dtype != spec[1]:
        raise _other_dtype(where, spec[1], array.dtype)
    if array.shape != spec[0]:
        raise _other_shape(where, spec[0], array.shape)
    require_present(array)


def _other_dtype(where: str, expected: np.dtype, got: np.dtype) -> PycError:
    return PycError(
        ReasonCode.ARGUMENT_DTYPE,
        f"{where}: expected element type {dtype_name(expected)}, got {dtype_name(got)}",
    )


def _other_shape(where: str, expected: Any, got: tuple[int, ...]) -> PycError:
    return PycError(ReasonCode.ARGUMENT_SHAPE, f"{where}: expected shape {expected}, got {got}")


def _not_here(where: str, got: Any, entry: ArenaCall) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT,
        f"{where}: expected an Array on {entry.device!r} or one of numpy, got {got!r:.100}; make "
        "one with `to_device`, or take an earlier result",
    )


def _check_overlaps(
    names: Sequence[str],
    given: Sequence[Array | None],
    inputs: Sequence[Array],
    signature: Signature,
    donors: Mapping[int, int],
) -> None:
    taken = [(f"input `{a.name}`", x) for a, x in zip(signature.inputs, inputs, strict=True)]
    for number, (name, array) in enumerate(zip(names, given, strict=True)):
        if array is None:
            continue
        for place, (other, memory) in enumerate(taken):
            if donors.get(number) != place and overlap(array, memory):
                raise PycError(
                    ReasonCode.OUTPUT_OVERLAP,
                    f"out `{name}`: expected memory of its own, got memory of {other}",
                )
        taken.append((f"output `{name}`", array))


def donors(donate: Any) -> Sequence[int]:
    """`donate` as it was given. Raises PycError (BAD_ARGUMENT) unless it is a sequence."""
    if not isinstance(donate, NUMBERS):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"donate: expected a tuple of numbers of inputs, got {donate!r:.100}",
        )
    return donate


def donated_memory(
    donate: Sequence[int],
    out: Any,
    needs: CallNeeds,
    inputs: Sequence[Array],
    signature: Signature,
    entry: ArenaCall,
) -> dict[int, tuple[int, Array]]:
    """Return by result the donated input, and its memory, that the result takes.

    Each input gives its memory to a result that is proven to fit and has none in `out`. Raises
    PycError: BAD_ARGUMENT (not an input's number), DONATION_UNSAFE.
    """
    for number in donate:
        if type(number) is not int or not 0 <= number < len(signature.inputs):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"donate: expected numbers of inputs below {len(signature.inputs)}, got {number!r}",
            )
    given = [out] if isinstance(out, Array) else out or ()
    taken = {o for o, array in enumerate(given) if array is not None}
    specs = needs.specs
    pairs = [(i, o) for i, o in entry.facts.donations if o in specs]
    receivers = matched(donate, [(i, o) for i, o in pairs if o not in taken])
    for number in donate:
        if number not in receivers:
            names = ", ".join(signature.outputs[o].name for i, o in pairs if i == number)
            raise PycError(
                ReasonCode.DONATION_UNSAFE,
                f"donate: expected a result of as many bytes as `{signature.inputs[number].name}` "
                "that is proven to be written only after it was read, got "
                f"{f'other memory for {names}' if names else 'none'}; call without `donate`",
            )
    return {o: (i, reinterpreted(inputs[i], specs[o])) for i, o in receivers.items()}


def matched(donate: Sequence[int], pairs: Collection[tuple[int, int]]) -> dict[int, int]:
    """Match as many inputs of `donate` as possible with results, by augmenting paths.

    pairs: (input, result) that fit. The inputs that come first keep a result.
    """
    donors: dict[int, int] = {}

    def place(number: int, seen: set[int]) -> bool:
        for result in (o for i, o in pairs if i == number and o not in seen):
            seen.add(result)
            if result not in donors or place(donors[result], seen):
                donors[result] = number
                return True
        return False

    for number in dict.fromkeys(donate):
        place(number, set())
    return {number: result for result, number in donors.items()}


def no_entry(where: str, stand_in: str = "") -> PycError:
    """Refuse a program that has no entry for memory of its caller.

    stand_in: the fallback that answers in the program's place, if one does.
    """
    why = "got one without such an entry; its decision `arena-entry` says why"
    if stand_in:
        why = (
            f"got its fallback `{stand_in}`, which has no such entry; call it without `{where}`; "
            "`Program.stats().fallbacks` says why it answers"
        )
    return PycError(
        ReasonCode.NO_ARENA_ENTRY,
        f"{where}: expected a program that can write into memory of its caller, {why}",
    )
