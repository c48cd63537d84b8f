"""Which of its plans does a program call, and when does it change to another one?

An artifact may hold several plans of one program, each behind an entry of its own: the planner's
modes (`compile(..., also_modes=...)`). A mode is switched by hand or by a rule on the free memory
of the device. Arenas of the mode that was left are let go as soon as no call works in them.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.artifact import ARENA
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.arenas import ArenaCall, ArenaPool, Launch
from pyc_mlir.runtime.array import Array, Spec
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.util.pages import LARGE_BYTES

FreeMemory = Callable[[], int]
Run = Callable[[Sequence[Array]], list[Array]]
_MEMINFO = Path("/proc/meminfo")
_AVAILABLE = "MemAvailable:"


@dataclass
class PlannedMode:
    """One plan of a program, as calls need it.

    arena: its entry; None where calls only have `main`. by_arena: whether calls without `out` go
    there too. accepted: argument lists that passed the guards (shape, element type and device of
    each argument), and what a call with them needs.
    """

    name: str
    arena: ArenaCall | None
    by_arena: bool
    accepted: dict[tuple[Spec, ...], Launch] = field(default_factory=dict)


@dataclass(frozen=True)
class ModeSwitch:
    """One change of mode: from which to which, and why, in words with the numbers."""

    before: str
    after: str
    why: str
    code: ReasonCode = ReasonCode.MODE_SWITCHED


@dataclass(frozen=True)
class MemoryRule:
    """Use the mode `below` while fewer than `limit` bytes are free, else `otherwise`.

    `free` tells the free bytes of the device's memory. What the program's own arenas hold counts
    as free: whichever mode is taken, they are let go or used again, so that the answer does not
    turn about because it was followed.
    """

    limit: int
    below: str
    otherwise: str
    free: FreeMemory

    def answer(self, held: int) -> tuple[str, str]:
        """The mode to use, and why; `held` are bytes of the program's arenas."""
        free = self.free() + held
        low = free < self.limit
        said = f"{free} bytes free, {'below' if low else 'not below'} the limit of {self.limit}"
        return (self.below if low else self.otherwise), said


def planned_modes(
    entries: Mapping[str, Mapping[str, Any]],
    executable: Executable,
    results: Sequence[ResultType],
    pool: ArenaPool,
    contract: Contract,
) -> dict[str, PlannedMode]:
    """The plans of an artifact by the name of their mode, that of `main` first."""
    found = {}
    for name in sorted(n for n in entries if n.startswith(ARENA)):
        entry = entries[name]
        arena = ArenaCall(executable, entry["function"], results, pool)
        # `main` has the plan of the first one only.
        pays = name != ARENA or _arena_pays(arena, contract, executable.device)
        found[str(entry.get("mode", ""))] = PlannedMode(str(entry.get("mode", "")), arena, pays)
    return found or {"": PlannedMode("", None, False)}


def _arena_pays(arena: ArenaCall, contract: Contract, device: Device) -> bool:
    """Whether calls go through the arena: where there is scratch, or a result on large pages.

    Else `main` is as good. On GPUs, where a fresh output from the allocator may cost more than one
    in IREE's own queue, only under a budget, which counts the arenas.
    """
    if device.is_cpu:
        return arena.facts.arena_bytes != 0 or arena.largest_output >= LARGE_BYTES
    return arena.facts.arena_bytes != 0 and contract.memory_budget_bytes is not None


def gated(run: Run, calls: int | None) -> Run:
    """`run` for at most so many callers at once, further ones wait; None: for all."""
    if calls is None:
        return run
    gate = threading.BoundedSemaphore(calls)

    def one_of_them(arrays: Sequence[Array]) -> list[Array]:
        with gate:
            return run(arrays)

    return one_of_them


def known_mode(name: str, modes: Mapping[str, Any]) -> str:
    """`name`, if it is one of the program's modes. Raises PycError (BAD_ARGUMENT)."""
    if name not in modes:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"mode: expected one of the program's, {', '.join(modes)}, got {name!r}; compile with "
            "`also_modes` to have more",
        )
    return name


def memory_rule(
    limit: int, below: str, otherwise: str, free: FreeMemory | None, device: Device
) -> MemoryRule:
    """A rule that can be asked. Raises PycError (BAD_ARGUMENT) without a way to tell what is free.

    On CPUs Linux tells; IREE tells what it has allocated on a device, not what is left.
    """
    if type(limit) is not int or limit < 0:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"free_bytes: expected bytes, not negative, got {limit!r}"
        )
    if free is None and device.is_cpu and _MEMINFO.exists():
        free = available_memory
    if free is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"free: expected a function that tells the free bytes of {device!r}, got none; the "
            "runtime does not know them there",
        )
    return MemoryRule(limit, below, otherwise, free)


def available_memory() -> int:
    """Bytes that Linux can give without swapping."""
    with _MEMINFO.open() as lines:
        return parse_available(lines)


def parse_available(lines: Iterable[str]) -> int:
    """Bytes from the text of `/proc/meminfo`. Raises PycError (RUNTIME_FAILED)."""
    for line in lines:
        if line.startswith(_AVAILABLE):
            return int(line.split()[1]) * 1024
    raise PycError(
        ReasonCode.RUNTIME_FAILED,
        f"{_MEMINFO}: expected a line `{_AVAILABLE}`, got none; give a function `free`",
    )
