"""From a model to a program: front end, pyc passes, linalg, IREE, artifact.

    program = compile("model.onnx", target="cpu")
    y = program(x)

`lower` stops at MLIR, `build` at the artifact (for targets without a device here), `compile`
loads the artifact on a device.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.artifact import Artifact, Mode, make_manifest
from pyc_mlir.artifact.compile_log import recipe_at
from pyc_mlir.artifact.contract_status import Facts, promised
from pyc_mlir.artifact.memory_report import MemoryReport
from pyc_mlir.artifact.memory_report import to_bytes as report_bytes
from pyc_mlir.artifact.signature import Ranges, checked_range
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Evidence, Oracle
from pyc_mlir.cache.cache import Cache, choose
from pyc_mlir.cache.lookup import compiled
from pyc_mlir.cache.verdicts import Verdicts, noted
from pyc_mlir.compilation.budget import within_budget
from pyc_mlir.compilation.contract_check import as_asked, checked_options, kept
from pyc_mlir.compilation.fallback import Request, compile_with_fallback
from pyc_mlir.compilation.lower import ALL_KERNELS, NO_KERNELS, Lowered, Options, lower
from pyc_mlir.compilation.oracles import ForeignOracle, PycOracle, make_samples
from pyc_mlir.compilation.plan_memory import UNPLANNED, compile_planned, planner_of
from pyc_mlir.compilation.stages import at_a_stage, replayed
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.sources import holds_bytecode
from pyc_mlir.iree.memory.arena_choice import MADE, NONE, ArenaEntry
from pyc_mlir.iree.memory.arena_choice import SITE as ARENA_SITE
from pyc_mlir.iree.memory.budget import Budget
from pyc_mlir.pipelines.choices.choices import (
    FALLBACK,
    Alternative,
    Choices,
    Decision,
    FirstIsBest,
    Policy,
    Recipe,
    Site,
)
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.policies import load_policy, planner_modes
from pyc_mlir.pipelines.memory.planner.planner import MODES
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.arena_call import read_facts
from pyc_mlir.runtime.device import Device, host_cpu
from pyc_mlir.runtime.program import Program
from pyc_mlir.util.temp_dir import require_room
from pyc_mlir.worker.front import in_workers

_EVIDENCE_CHARACTERS = 300
# IREE's flags that change what a program needs of its CPU.
_CPU_FLAGS = "iree-llvmcpu-target-cpu"
Stage = Callable[[str], AbstractContextManager[None]]


def untold(_title: str) -> AbstractContextManager[None]:
    """A `Stage` that tells nobody."""
    return nullcontext()


def compile(
    source: Any,
    inputs: Sequence[Any] | None = None,
    *,
    target: str | Target = "cpu",
    contract: Contract | None = None,
    policy: Policy | str | None = None,
    recipe: Recipe | str | Path | None = None,
    device: Device | None = None,
    iree_flags: Sequence[str] = (),
    dump_phases: str | Path | None = None,
    planner_mode: str = "",
    also_modes: Sequence[str] = (),
    kernels: str = ALL_KERNELS,
    calibration: Calibration | str | Path | None = None,
    dims: Ranges | None = None,
    cache: Cache | bool | str | Path | None = None,
    untrusted: bool = False,
) -> Program:
    """Compile `source` and load it on a device.

    source: a Python function, an ``.onnx`` or ``.mlir`` file, an ONNX model, MLIR text, a module.
    inputs: for functions the arguments' specs or example arrays; for other sources shapes (or
        arrays) that refine dynamic dimensions.
    target: a name of `pyc_mlir.pipelines.target.target.TARGETS`, or a Target.
    contract: clauses that must be kept; those that cannot be are refused.
    policy, recipe: who answers the choices: a policy or its name (`load_policy`), and the log of
        an earlier compile, which comes first.
    iree_flags, dump_phases: passed to IREE; a folder that gets the IR of each of its phases.
    planner_mode: ``latency_first``, ``balanced`` or ``memory_first``: how memory is planned, kept
        wherever that is smaller than IREE's plan; ``iree`` leaves it to IREE. Empty asks the
        policy, which has a say if it names `planner_modes`; else it is ``balanced``.
    also_modes: further modes whose plans the artifact holds too: `Program.use_mode` takes them.
    kernels: families of generated kernels that may be chosen, joined by ``+``; ``iree`` leaves all
        code to IREE.
    calibration: figures of this CPU by `pyc-doctor --calibrate`, for choices to go by in place of
        the target's published ones; log and manifest name them.
    dims: for dynamic dimensions the smallest and the largest size, ``{"batch": (1, 64)}``; one
        without a name goes by its place, ``"x[0]"``. Calls outside are refused, and a memory
        budget is kept up to the largest sizes.
    cache: a folder whose programs are not compiled again, True for the user's own, or a `Cache`;
        `Program.stats().cache` says what it did. Without it nothing is looked up or kept.
    untrusted: `source` is read and compiled in a worker process, whose crash is an error. MLIR
        bytecode always is, and what has a limit of seconds.

    Raises PycError with the reason's code.
    """
    decided = (planner_mode, also_modes, kernels, calibration, dims)
    options = make_options(target, contract, policy, recipe, iree_flags, dump_phases, *decided)
    chosen = choose(cache, os.environ)
    made = build(source, inputs, options, cache=chosen, untrusted=untrusted)
    return Program(made, device)


def make_options(
    target: str | Target = "cpu",
    contract: Contract | None = None,
    policy: Policy | str | None = None,
    recipe: Recipe | str | Path | None = None,
    iree_flags: Sequence[str] = (),
    dump_phases: str | Path | None = None,
    planner_mode: str = "",
    also_modes: Sequence[str] = (),
    kernels: str = ALL_KERNELS,
    calibration: Calibration | str | Path | None = None,
    dims: Ranges | None = None,
) -> Options:
    """Options from what users give.

    Raises PycError for an unknown target, policy, planner mode or kernel family, a refused
    clause, a flag that names another CPU, or a calibration that is damaged or of another CPU.
    """
    _check_kinds(target=target, policy=policy, kernels=kernels, contract=contract)
    _check_flags(iree_flags)
    found = Target.named(target) if isinstance(target, str) else target
    cpu = host_cpu()
    if found.name == "cpu" and cpu is not None:
        found = found.on(cpu)
    measured = Calibration.load(calibration) if isinstance(calibration, str | Path) else calibration
    if measured is not None:
        found = found.calibrated(measured)
    promised = contract or Contract()
    promised.check(found.name)
    asked = load_policy(policy) if isinstance(policy, str) else policy or FirstIsBest()
    modes = planner_modes(asked) if not planner_mode else (planner_mode,)
    also_modes = (also_modes,) if isinstance(also_modes, str) else also_modes
    _check_modes(modes, also_modes, promised)
    if kernels not in (ALL_KERNELS, NO_KERNELS):
        _require_families(kernels.split("+"))
    options = Options(
        found,
        promised,
        asked,
        recipe_at(recipe) if isinstance(recipe, (str, Path)) else recipe,
        tuple(iree_flags),
        None if dump_phases is None else Path(dump_phases),
        planner_modes=() if modes == (UNPLANNED,) else modes,
        kernels=kernels,
        also_modes=tuple(m for m in dict.fromkeys(also_modes) if (m,) != modes),
        calibration=measured,
        ranges={name: checked_range(name, value) for name, value in (dims or {}).items()},
    )
    return checked_options(options)


def _check_modes(modes: Sequence[str], also_modes: Sequence[str], promised: Contract) -> None:
    """Raise PycError (BAD_ARGUMENT) for modes that are none, or that leave out what is asked."""
    if modes != (UNPLANNED,):
        planner_of(modes, also_modes)
    elif also_modes:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"also_modes: expected a planner mode of {sorted(MODES)} beside them, got "
            f"{UNPLANNED!r}, which plans nothing",
        )
    elif promised.memory_budget_bytes is not None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"contract clause `memory_budget_bytes`: expected a planner mode of {sorted(MODES)}, "
            f"got {UNPLANNED!r}, which plans nothing",
        )


def _check_flags(iree_flags: Sequence[str]) -> None:
    """Raise PycError (BAD_ARGUMENT) for a flag that names a CPU."""
    for flag in iree_flags:
        if str(flag).lstrip("-").startswith(_CPU_FLAGS):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"iree_flags: expected none that names a CPU, got {flag!r}; a program is refused "
                "where a feature of its target is lacking, so name the CPU by `target`",
            )


def _check_kinds(**given: Any) -> None:
    """Raise PycError (BAD_ARGUMENT) for what is of another kind than an argument takes."""
    kinds: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "target": ("a name or a Target", lambda v: isinstance(v, str | Target)),
        "policy": (
            "a name or an object with `name` and `prefer`",
            lambda v: v is None or isinstance(v, str) or hasattr(v, "prefer"),
        ),
        "kernels": ("names of families joined by +", lambda v: isinstance(v, str)),
        "contract": ("a Contract", lambda v: v is None or isinstance(v, Contract)),
    }
    for name, value in given.items():
        expected, fits = kinds[name]
        if not fits(value):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"{name}: expected {expected}, got {value!r} of type {type(value).__name__}",
            )


def _require_families(names: Sequence[str]) -> None:
    from pyc_mlir.pipelines.kernels.registry import FAMILIES

    unknown = sorted(set(names) - set(FAMILIES))
    if unknown:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"kernels: expected {ALL_KERNELS!r}, {NO_KERNELS!r} or some of {', '.join(FAMILIES)} "
            f"joined by +, got {unknown}",
        )


def build(
    source: Any,
    inputs: Sequence[Any] | None,
    options: Options,
    stage: Stage = untold,
    cache: Cache | None = None,
    untrusted: bool = False,
) -> Artifact:
    """Compile to an artifact; no device is needed. Raises as `compile`.

    stage: a context manager around each step, called with what the step does.
    cache: is asked first, and keeps what is compiled.
    untrusted: as for `compile`.
    """
    untrusted = untrusted or holds_bytecode(source)
    if untrusted or options.contract.max_compile_seconds is not None:
        return in_workers(source, inputs, options, stage, cache, untrusted, build)
    if cache is None:
        return build_here(source, inputs, options, stage)
    found = compiled(cache, source, inputs, options, lambda s, i: build_here(s, i, options, stage))
    verdicts = Verdicts.of(cache, found.cached)
    if found.evidence is not None:
        return noted(found, verdicts)
    # What was compiled elsewhere is tried here.
    return tried(found, options, partial(build, source, inputs, stage=stage, cache=cache), verdicts)


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


def tried(
    found: Artifact,
    options: Options,
    again: Callable[[Options], Artifact],
    verdicts: Verdicts | None = None,
) -> Artifact:
    """An artifact from a cache, after it was tried here under the contract. Raises as `compile`.

    again: compiles the program under other options. verdicts: of earlier comparisons.
    """
    made = kept(options, lambda asked: found if asked is options else again(asked), verdicts)
    return as_asked(made, options)


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
