"""From a model to a program: front end, pyc passes, linalg, IREE, artifact.

    program = compile("model.onnx", target="cpu")
    y = program(x)

`lower` stops at MLIR, `build` at the artifact (for targets without a device here), `compile`
loads the artifact on a device.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.artifact import Artifact, Mode, make_manifest
from pyc_mlir.artifact.contract_status import Facts, promised
from pyc_mlir.artifact.memory_report import MemoryReport
from pyc_mlir.artifact.memory_report import to_bytes as report_bytes
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Evidence, Oracle
from pyc_mlir.compilation.budget import within_budget
from pyc_mlir.compilation.contract_check import as_asked, kept
from pyc_mlir.compilation.fallback import Request, compile_with_fallback
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.oracles import ForeignOracle, PycOracle, make_samples
from pyc_mlir.compilation.plan_memory import UNPLANNED, compile_planned, planner_of
from pyc_mlir.compilation.stages import at_a_stage, replayed
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.arena_choice import MADE, NONE, ArenaEntry
from pyc_mlir.iree.memory.arena_choice import SITE as ARENA_SITE
from pyc_mlir.iree.memory.budget import Budget
from pyc_mlir.pipelines.choices.choices import (
    FALLBACK,
    Alternative,
    Choices,
    Decision,
    Site,
)
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.arenas import read_facts
from pyc_mlir.util.temp_dir import require_room

_EVIDENCE_CHARACTERS = 300
Stage = Callable[[str], AbstractContextManager[None]]


def untold(_title: str) -> AbstractContextManager[None]:
    """A `Stage` that tells nobody."""
    return nullcontext()


def build_here(
    source: Any, inputs: Sequence[Any] | None, options: Options, stage: Stage = untold
) -> Artifact:
    """Compile in this process, without a cache or a limit of time. Raises as `compile`."""
    if options.target.device == "local":
        require_room()

    def make(options: Options, before: Choices) -> Artifact:
        with stage("PyC lowers to linalg"):
            lowered = lower(source, inputs, options)
        with stage(f"IREE compiles for {options.target.name}"):
            return finish(lowered, options, before.log)

    at, decision = replayed(options)
    made = kept(at, lambda options: within_budget(options, make))
    return as_asked(made if decision is None else at_a_stage(made, decision), options)


def finish(lowered: Lowered, options: Options, before: Sequence[Decision] = ()) -> Artifact:
    """Compile a lowered program by IREE and make its artifact. Raises as `compile`.

    before: decisions made before the program was lowered.
    """
    oracle = oracle_of(lowered) if options.contract.compares else None
    samples = Samples() if oracle is None else make_samples(oracle, lowered.signature)
    choices = Choices(options.policy, options.recipe, [*before, *lowered.decisions])
    vmfb, arena, seen = compile_entries(lowered, options, choices)
    choices.require_recipe_used()
    facts = read_facts(vmfb, arena.name)
    account = _account(lowered, options, arena)
    _require_kept(account, options.contract, arena)
    manifest = make_manifest(
        options.target,
        lowered.signature,
        lowered.graph_id,
        lowered.constants_bytes,
        options.contract,
        entry=lowered.entry,
        arena_entry="" if facts is None else arena.name,
        account=account,
        modes=_modes(vmfb, options, arena),
        seconds=lowered.seconds,
        calibration=options.calibration,
        promises=promised(options.contract, _facts(options, account, samples, oracle)),
        imported=lowered.imported,
    )
    memory = report_bytes(seen) if seen.regions else b""
    return Artifact(
        vmfb,
        manifest,
        tuple(choices.log),
        lowered.pyc_text.encode(),
        memory,
        samples.to_bytes() if samples.samples else b"",
        Evidence(oracle),
    )


def oracle_of(lowered: Lowered) -> Oracle:
    """Who knows what the program should answer."""
    if lowered.graph_id:
        return PycOracle(lowered.reference, lowered.entry)
    return ForeignOracle(lowered.reference, lowered.entry, lowered.signature)


def _facts(options: Options, account: Account, samples: Samples, oracle: Oracle | None) -> Facts:
    used = options.calibration
    return Facts(
        options.target.name,
        account,
        len(samples.samples),
        "" if oracle is None else oracle.name,
        "" if used is None else f"{used.name} ({used.hash[:12]})",
    )


def _modes(vmfb: bytes, options: Options, arena: ArenaEntry) -> dict[str, Mode]:
    """Each function with an arena of its own: the mode of its plan, the arena's bytes."""
    first = "+".join(options.planner_modes) or UNPLANNED
    found = {}
    for name, mode in {arena.name: first, **arena.modes}.items():
        facts = read_facts(vmfb, name)
        if facts is not None:
            found[name] = Mode(mode, facts.arena_bytes)
    return found


def _account(lowered: Lowered, options: Options, arena: ArenaEntry) -> Account:
    """What a program needs, of the entry that a Program takes (program.py)."""
    account = Account.of(lowered.signature, arena.constants_bytes)
    contract = options.contract
    by_arena = options.target.device == "local" or contract.memory_budget_bytes is not None
    in_arena = arena.twin is not None and by_arena
    called = arena.twin if in_arena else arena.main
    needed = None if called is None else called.largest
    outputs = None if arena.outputs is None else arena.outputs.largest
    if needed is None or outputs is None:
        return account
    arenas = 0 if arena.twin is None else arena.arena_bytes.largest or 0
    transients = max(arenas, needed - outputs)
    if contract.max_concurrency > 1:
        # Another call's outputs may be there before this one's are.
        call = arena.calls[arena.name if in_arena else arena.function]
        transients = max(transients, call.beside_outputs + (arenas if in_arena else 0))
    return replace(account, outputs=outputs, transients=transients)


def _require_kept(account: Account, contract: Contract, arena: ArenaEntry) -> None:
    """Raise PycError (BUDGET_NOT_FOUND) unless what was made keeps the budget, every mode of it.

    Plans were chosen by the same figures, before IREE's last passes over them.
    """
    if contract.memory_budget_bytes is None:
        return
    modes = [None if m is None else m.largest for m in arena.in_modes.values()]
    beside = [None if m is None else m - (account.outputs or 0) for m in modes]
    largest = [account.transients, *beside]
    known = [size for size in largest if size is not None]
    total = replace(account, transients=max(known, default=0)).total(contract.max_concurrency)
    if len(known) < len(largest) or total is None or total > contract.memory_budget_bytes:
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected at most {contract.memory_budget_bytes} bytes, got a program "
            f"that needs {total} ({account}); raise the budget, or leave further modes out",
        )


def compile_entries(
    lowered: Lowered, options: Options, choices: Choices
) -> tuple[bytes, ArenaEntry, MemoryReport]:
    """The vmfb with both entries where that can be, what came of the second one, the plans.

    A decision at the site `arena-entry` says whether it was made, and if not, why.
    """
    site = Site(ARENA_SITE, lowered.graph_id or "module")
    made = Alternative(MADE, reason="the caller can own scratch and outputs")
    none = Alternative(NONE, reason="only the plain ABI")
    wanted = choices.choose(site, (made, none)).name == MADE
    decided = len(choices.log) - 1
    ranges = lowered.signature.ranges_of_inputs
    arena = ArenaEntry(lowered.entry, wanted, options.also_modes, ranges)
    vmfb, seen = _generate(lowered, options, choices, arena)
    if wanted and arena.missing:
        why = f"{ReasonCode.NO_ARENA_ENTRY.name}: {arena.missing}"[:_EVIDENCE_CHARACTERS]
        choices.log[decided] = Decision(site, NONE, (made, none), FALLBACK, (why,))
    elif wanted:
        evidence = (arena.evidence,)
        choices.log[decided] = replace(choices.log[decided], evidence=evidence)
    return vmfb, arena, seen


def _generate(
    lowered: Lowered, options: Options, choices: Choices, arena: ArenaEntry
) -> tuple[bytes, MemoryReport]:
    folder = options.dump_phases
    request = Request(
        lowered.code,
        options.target,
        options.iree_flags,
        None if folder is None else str(folder),
        lowered.locations,
        arena,
        arena.ranges,
    )
    first = "plain" if lowered.mixes_rows else "aggressive"
    if options.planner_modes:
        planner = planner_of(options.planner_modes, options.also_modes)
        budget = _budget(lowered, options.contract)
        return compile_planned(
            request, lowered.graph_id, choices, planner, first, budget, arena.modes
        )
    return compile_with_fallback(request, lowered.graph_id, choices, first), MemoryReport()


def _budget(lowered: Lowered, contract: Contract) -> Budget | None:
    if contract.memory_budget_bytes is None:
        return None
    if undeclared := lowered.signature.undeclared:
        name, where = undeclared[0]
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected a range of every dynamic dimension, got none of `{name}` "
            f"({where}); declare it as in dims={{{name!r}: (1, 64)}} or --dim {name}=1:64, or give "
            "static shapes in `inputs`",
        )
    inputs = Account.of(lowered.signature).inputs
    return Budget(contract.memory_budget_bytes, inputs, contract.max_concurrency)
