"""The account of a compiled module: what its calls need, and what they would by IREE's own plan.

Comes in: what the compile read off the module (`ArenaEntry`), the signature, the contract. Goes
out: an `Account` of the entry that a Program calls.
"""

from dataclasses import replace

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.manifest import BY_IREE, MEMORY, OUTPUTS
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.arena_choice import ArenaEntry
from pyc_mlir.iree.memory.call_memory import CallBytes
from pyc_mlir.pipelines.choices.contract import Contract


def account_of(signature: Signature, entry: ArenaEntry, contract: Contract, device: str) -> Account:
    """Return what a program needs, of the entry that a Program takes (runtime/plans.py)."""
    account = Account.of(signature, entry.constants_bytes)
    in_arena, called = _called(entry, contract, device)
    needed = None if called is None else called.largest
    outputs = None if entry.outputs is None else entry.outputs.largest
    if needed is None or outputs is None:
        return account
    arena = 0 if entry.twin is None else entry.arena_bytes.largest or 0
    scratch = max(arena, needed - outputs)
    if contract.max_concurrency > 1:
        # Another call's outputs may be there before this one's are.
        asked = entry.request
        call = entry.calls[asked.name if in_arena else asked.function]
        scratch = max(scratch, call.beside_outputs + (arena if in_arena else 0))
    transients = arena if in_arena else scratch
    return replace(account, outputs=outputs, transients=transients, workspace=scratch - transients)


def _called(entry: ArenaEntry, contract: Contract, device: str) -> tuple[bool, CallBytes | None]:
    """Return whether calls take the entry with an arena, and what one of them allocates."""
    by_arena = device == "local" or contract.memory_budget_bytes is not None
    in_arena = entry.twin is not None and by_arena
    return in_arena, entry.twin if in_arena else entry.main


def formulas_of(
    entry: ArenaEntry, reference: CallBytes | None, contract: Contract, device: str
) -> dict[str, list[str]]:
    """Return what a call allocates, outputs included, by both plans, and its outputs alone.

    Empty where all is known, and where it cannot be said.
    """
    called = _called(entry, contract, device)[1]
    if called is None or reference is None or entry.outputs is None:
        return {}
    if None not in (called.known, reference.known):
        return {}
    sums = {MEMORY: called.sums, BY_IREE: reference.sums, OUTPUTS: (entry.outputs,)}
    return {name: [str(size) for size in sizes] for name, sizes in sums.items()}


def reference_of(account: Account, larger: int, needed: CallBytes | None) -> Account:
    """Return the account of the same dispatches by IREE's own plan.

    larger: what constants take more in the forms that kernels read. Others that a compile makes,
        such as tables and what IREE computes of constants, it would hold too.
    needed: what a call of `main` allocates under that plan.
    """
    held = None if account.constants is None else account.constants - larger
    peak = None if needed is None else needed.largest
    if peak is None or account.outputs is None:
        return replace(account, constants=held, transients=None, workspace=None)
    transients = max(0, peak - account.outputs)
    return replace(account, constants=held, transients=transients, workspace=0)


def require_kept(account: Account, contract: Contract, entry: ArenaEntry) -> None:
    """Raise PycError (BUDGET_NOT_FOUND) unless what was made keeps the budget, every mode of it.

    Plans were chosen by the same figures, before IREE's last passes over them.
    """
    if contract.memory_budget_bytes is None:
        return
    modes = [None if m is None else m.largest for m in entry.in_modes.values()]
    beside = [None if m is None else m - (account.outputs or 0) for m in modes]
    largest = [account.scratch, *beside]
    known = [size for size in largest if size is not None]
    widest = replace(account, transients=max(known, default=0), workspace=0)
    total = widest.total(contract.max_concurrency)
    if len(known) < len(largest) or total is None or total > contract.memory_budget_bytes:
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected at most {contract.memory_budget_bytes} bytes, got a program "
            f"that needs {total} ({account}); raise the budget, or leave further modes out",
        )
