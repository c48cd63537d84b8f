"""Plans on IREE's stream IR: whatever the plan, the bits stay; whatever the planner, never worse.

The planners here are deliberately simple or hostile: what is tested is the adapter.
"""

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from conftest import FULL
from stream_programs import Program, at_stream, branches, chain, layered

from pyc_mlir.api import compile
from pyc_mlir.compilation import assign_memory
from pyc_mlir.compilation.assign_memory import MemoryRequest, Planner, pack_slices
from pyc_mlir.compilation.build import Plan, build
from pyc_mlir.compilation.lower import Lowered
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.iree.diagnostics import CompileError
from pyc_mlir.iree.memory.versions import Version, carry_out, finish, regions_of
from pyc_mlir.pipelines.choices.choices import Policy
from pyc_mlir.pipelines.choices.evidence import PlanBytes, Reason
from pyc_mlir.pipelines.memory.planner.planner import MODES
from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem, SchedulePlan, TaskStep
from pyc_mlir.pipelines.streams.ir import find, ir
from pyc_mlir.pipelines.streams.sizes import ByteSize, size_of
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.tools.bench.workloads.parts import EncoderShape, encoder_block, encoder_weights

CPU = Target.named("cpu")


def plan_of(code: bytes, memory: MemoryRequest) -> Plan:
    """A program to compile for the CPU with plans of its memory."""
    return Plan(lowered=Lowered(code=code), options=Options(target=CPU), memory=memory)


Plans = Callable[[PlanningProblem], SchedulePlan]


def in_waves(waves, sources=None) -> SchedulePlan:
    return SchedulePlan(tuple(tuple(w) for w in waves), {}, 0, 0, sources=sources or {})


def greedy(problem: PlanningProblem) -> SchedulePlan:
    """A sequence: always the task that frees the most."""
    before, order = problem.predecessors, []
    unread = {b: len(readers) for b, readers in problem.readers.items()}

    def growth(task: int) -> int:
        reads, writes = problem.tasks[task].reads, problem.tasks[task].writes
        freed = sum(problem.buffers[b].size for b in reads if unread[b] == 1)
        return sum(problem.buffers[b].size for b in writes) - freed

    while len(order) < len(problem.tasks):
        ready = [t for t in range(len(problem.tasks)) if t not in order and before[t] <= set(order)]
        order.append(min(ready, key=lambda t: (growth(t), t)))
        for b in problem.tasks[order[-1]].reads:
            unread[b] -= 1
    return in_waves([[TaskStep(t)] for t in order])


def hostile(seed: int, width: int, copies: float = 0.0) -> Plans:
    """Any legal order in waves of up to `width`; each read recomputed with a probability."""
    rng = random.Random(seed)

    def plan(problem: PlanningProblem) -> SchedulePlan:
        done: set[int] = set()
        waves: list[list[TaskStep]] = []
        while len(done) < len(problem.tasks):
            ready = [
                t
                for t in range(len(problem.tasks))
                if t not in done and problem.predecessors[t] <= done
            ]
            wave = rng.sample(ready, min(len(ready), rng.randint(1, width)))
            waves.append([TaskStep(t) for t in wave])
            done.update(wave)
        sources, runs = {}, Counter()
        for reader, task in enumerate(problem.tasks):
            for b in task.reads:
                writer = problem.writer.get(b)
                if writer is None or not problem.tasks[writer].recomputable:
                    continue
                if rng.random() < copies:
                    runs[writer] += 1
                    at = next(i for i, w in enumerate(waves) if TaskStep(reader) in w)
                    waves.insert(at, [TaskStep(writer, runs[writer])])
                    sources[TaskStep(reader), b] = runs[writer]
        return in_waves(waves, sources)

    return plan


def first_fit(slices, enough):
    """Largest first, each at the lowest place that is free during its life."""
    offsets = [0] * len(slices)
    placed: list[int] = []
    for i in sorted(range(len(slices)), key=lambda i: -slices[i][2]):
        start, end, size = slices[i]
        at = 0
        for j in sorted(placed, key=lambda j: offsets[j]):
            if slices[j][0] <= end and start <= slices[j][1]:
                if at + size <= offsets[j]:
                    break
                at = max(at, offsets[j] + slices[j][2])
        offsets[i] = at
        placed.append(i)
    return offsets, max(o + s[2] for o, s in zip(offsets, slices, strict=True))


def apart(slices, enough):
    """A packer that shares nothing."""
    ends = np.cumsum([s[2] for s in slices])
    return [int(e) - s[2] for e, s in zip(ends, slices, strict=True)], int(ends[-1])


def run(vmfb: bytes, program: Program) -> tuple[list[bytes], int]:
    """The results' bits, and the peak of device memory beside the inputs."""
    device = Device("local-sync")
    inputs = [to_device(a, device) for a in program.inputs()]
    before = device.memory().live_bytes
    entry = Executable(vmfb, device).entry(
        "main", [ResultType(np.dtype(np.float32), None)] * program.results
    )
    results = [r.numpy().tobytes() for r in entry(inputs)]
    return results, device.memory().peak_bytes - before


def carried_out(program: Program, plans: Plans, pack=first_fit) -> tuple[bytes, str, list]:
    """The program under `plans` whether or not they are good: vmfb, stream IR, problems."""
    with at_stream(program.code) as session:
        start = session.module
        with session.context:
            problems = {r.index: r.problem for r in regions_of(start, CPU)}
        made = {i: plans(p) for i, p in problems.items()}
        finish(session, carry_out(session, start, made, pack, CPU))
        text = session.text().decode()
        session.run(start="stream")
        return session.vmfb(), text, list(problems.values())


def planned(program: Program, plan: Plans = greedy, pack=first_fit):
    planner = Planner({"planned": plan}, pack)
    made = build(plan_of(program.code, MemoryRequest(name="module", planner=planner)))
    return made.vmfb, list(made.memory.decisions)


def unplanned(program: Program) -> bytes:
    return compile_module(program.code, CPU)


def workspace(decision) -> dict[str, int]:
    return {a.name: a.cost.workspace_bytes for a in decision.alternatives}


@pytest.mark.full
def test_reorder_lowers_the_measured_peak():
    program = branches()
    vmfb, (decision,) = planned(program)
    assert decision.chosen == "planned" and decision.decided_by == "heuristic"
    bytes_of = workspace(decision)
    results, peak = run(vmfb, program)
    expected, reference = run(unplanned(program), program)
    assert results == expected
    assert (peak, reference) == (bytes_of["planned"], bytes_of["iree"])
    assert peak < reference
    assert f"{bytes_of['planned']} bytes, smaller than IREE's {bytes_of['iree']}" in str(decision)


@pytest.mark.full
def test_packing_alone_beats_iree_on_a_growing_chain():
    program = chain()
    vmfb, (decision,) = planned(program)
    # Rows of 32 f32. Widths 32, 64 and 96 are live in pairs: IREE's greedy packing puts 96 after
    # 64, below which 32 lies. The result of width 128 is allocated beside them.
    row = 32 * 4
    assert workspace(decision) == {
        "planned": row * (64 + 96 + 128),
        "iree": row * (32 + 64 + 96 + 128),
    }
    assert run(vmfb, program)[0] == run(unplanned(program), program)[0]


@pytest.mark.full
def test_every_region_is_planned_on_its_own():
    program = branches(4, regions=2)
    vmfb, decisions = planned(program)
    assert [d.chosen for d in decisions] == ["planned"] * 2
    assert len({d.site.op_id for d in decisions}) == 2
    (results, peak), (expected, reference) = run(vmfb, program), run(unplanned(program), program)
    assert results == expected and peak < reference


@pytest.mark.full
def test_a_policy_may_keep_iree_in_one_region():
    class OnlyTheFirst(Policy):
        name = "only-the-first"

        def prefer(self, site, alternatives):
            names = [a.name for a in alternatives]
            later = site.pass_name == "plan-memory" and not site.op_id.endswith("#0")
            return "iree" if later else names[0]

    program = branches(4, regions=2)
    planner = Planner({"planned": greedy}, first_fit)
    request = MemoryRequest(name="module", planner=planner, policy=OnlyTheFirst())
    made = build(plan_of(program.code, request))
    assert [d.chosen for d in made.memory.decisions] == ["planned", "iree"]
    assert run(made.vmfb, program)[0] == run(unplanned(program), program)[0]


@pytest.mark.full
def test_dynamic_sizes_are_compared_as_expressions():
    program = branches(rows=None)
    vmfb, (decision,) = planned(program)
    assert decision.chosen == "planned"
    assert "* hal.buffer_view.dim(arg0, " in str(decision.evidence[0])
    (results, peak), (expected, reference) = run(vmfb, program), run(unplanned(program), program)
    assert results == expected and peak < reference


def test_what_is_worse_is_not_taken():
    program = chain()
    vmfb, (decision,) = planned(program, pack=apart)
    assert decision.chosen == "iree" and [a.name for a in decision.alternatives] == ["iree"]
    assert all(isinstance(e, PlanBytes) and not e.smaller for e in decision.evidence)
    assert vmfb == unplanned(program), "IREE's own program, byte for byte"


def test_a_planner_that_fails_leaves_iree_and_says_so():
    def refuse(problem):
        raise PycError(ReasonCode.BAD_ARGUMENT, "no plan today")

    program = chain()
    vmfb, (decision,) = planned(program, plan=refuse)
    assert (decision.chosen, decision.decided_by) == ("iree", "fallback")
    assert decision.grounds == (Reason("PLANNING_FAILED", "no plan today"),)
    assert vmfb == unplanned(program)


def test_a_plan_that_iree_does_not_finish_leaves_iree_and_says_so(monkeypatch):
    calls = []

    def fails_once(session, version):
        calls.append(version)
        if len(calls) == 1:
            raise CompileError(ReasonCode.PASS_FAILED, "not to the end")
        finish(session, version)

    monkeypatch.setattr(assign_memory, "finish", fails_once)
    program = branches()
    vmfb, (decision,) = planned(program)
    assert (decision.chosen, decision.decided_by) == ("iree", "fallback")
    assert decision.grounds == (Reason("PLANNING_FAILED", "not to the end"),) and len(calls) == 2
    assert vmfb == unplanned(program)


def test_plans_that_are_not_proven_together_leave_iree_and_say_so(monkeypatch):
    """A promise to the user, so that no assertion keeps it: `python -O` leaves those out."""
    monkeypatch.setattr(Version, "never_above", lambda *_: False)
    program = branches()
    vmfb, (decision,) = planned(program)
    assert (decision.chosen, decision.decided_by) == ("iree", "fallback")
    assert str(decision.grounds[0]).startswith("PLANNING_FAILED: plans: expected every region")
    assert vmfb == unplanned(program)


@pytest.mark.parametrize("seed", range(5))
def test_packing_again_stops_at_what_is_enough(seed):
    rng = random.Random(seed)
    slices = [(t, t + rng.randint(0, 6), 64 * rng.randint(1, 40)) for t in range(40)]
    offsets, least = pack_slices(slices)
    assert pack_slices(slices, least)[1] == least
    for enough in (least, 2 * least):
        offsets, arena = pack_slices(slices, enough)
        assert least <= arena <= enough
        for (a, x), (b, y) in itertools.combinations(zip(slices, offsets, strict=True), 2):
            apart_ = x + a[2] <= y or y + b[2] <= x
            assert apart_ or a[1] < b[0] or b[1] < a[0]


# In program 121 two ops write into parts of one storage, both tied to the same value.
@pytest.mark.parametrize("seed", [*range(24 if FULL else 4), 121])
@pytest.mark.full
def test_any_legal_plan_gives_the_same_bits(seed):
    program = layered(seed, dynamic=seed % 3 == 0, ops=20 if seed == 121 else 12)
    vmfb, text, problems = carried_out(program, hostile(seed, 1 + seed % 4, copies=0.4))
    assert problems or "stream.resource.pack" not in text
    assert run(vmfb, program)[0] == run(unplanned(program), program)[0]


@pytest.mark.full
def test_waves_are_emitted_and_opened():
    program = branches(4)
    _, wide, (problem,) = carried_out(program, hostile(0, 3))
    _, narrow, _ = carried_out(program, hostile(0, 1))
    assert problem.concurrency > 1, "IREE overlaps branches"
    assert "stream.cmd.concurrent" in wide
    assert "stream.cmd.concurrent" not in narrow


@pytest.mark.full
def test_recomputed_copies_are_dispatches_of_their_own():
    program = branches(3)
    plain, once, _ = carried_out(program, hostile(0, 1))
    copied, again, _ = carried_out(program, hostile(0, 1, copies=1.0))
    count = [len(re.findall(r"stream\.cmd\.dispatch @", t)) for t in (once, again)]
    assert count[1] > count[0]
    assert run(plain, program)[0] == run(copied, program)[0]


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.full
def test_modes_compile_programs_and_say_what_they_chose(mode):
    shape = EncoderShape(seq=8, width=32, heads=2, hidden=64)
    block = encoder_block(shape, encoder_weights(shape))
    x = np.random.default_rng(0).normal(0, 1, (8, 32)).astype(np.float32)
    device = Device("local-sync")
    plain = compile(block, [x], device=device, planner_mode="iree")
    program = compile(block, [x], device=device, planner_mode=mode)
    assert program(x).tobytes() == plain(x).tobytes()
    decisions = [d for d in program.artifact.decisions if d.site.pass_name == "plan-memory"]
    assert len(decisions) == 2, "one for `main`, one for its second entry with the caller's memory"
    for sizes in map(workspace, decisions):
        assert sizes.get(mode, 0) <= sizes["iree"]
    again = compile(block, [x], device=device, planner_mode=mode)
    assert again.artifact.decisions == program.artifact.decisions


def test_an_unknown_mode_is_refused_before_anything_is_compiled():
    with pytest.raises(PycError, match=r"planner mode: expected one of .*balanced.*, got 'fast'"):
        make_options(planner_mode="fast")


@pytest.mark.full
def test_updates_in_place_are_ties():
    found = Counter()
    for seed in (2, 5, 7):
        _, _, problems = carried_out(layered(seed), greedy)
        for problem in problems:
            for task in problem.tasks:
                found["tied"] += bool(task.tied)
                assert not (task.tied and task.recomputable)
            for written, read in (pair for t in problem.tasks for pair in t.tied):
                pins = {problem.buffers[b].pinned for b in (written, read)}
                assert len(pins) == 1, "one storage lies inside or outside the arena"
    assert found["tied"]


def test_sizes_that_are_unknown_compare_by_coefficients():
    n, more = ByteSize(0, {"n": 1}, 64), ByteSize(0, {"m": 1}, 2, least={"m": 2})

    def times(size: ByteSize, other: int | ByteSize) -> ByteSize:
        made = size.product(ByteSize.of(other) if isinstance(other, int) else other)
        assert made is not None
        return made

    assert (ByteSize.of(64) + times(n, 2)).at_most(ByteSize.of(64) + times(n, 3))
    assert not (ByteSize.of(65) + n).at_most(ByteSize.of(64) + times(n, 9))
    assert (ByteSize.of(67) + more).at_most(ByteSize.of(64) + times(more, 3))
    assert not (ByteSize.of(69) + more).at_most(ByteSize.of(64) + times(more, 3))
    assert not n.at_most(ByteSize.of(1 << 40))
    assert str(ByteSize.of(64) + times(n, 3)) == "64 + 3 * n"
    assert (ByteSize.of(64) + times(n, 3)).nominal == 256
    both = times(times(more, 4) + ByteSize.of(8), times(n, n))
    assert str(both) == "4 * m * n * n + 8 * n * n" and both.nominal == 16 * 64 * 64
    assert str((times(n, 12) + ByteSize.of(8)).part(4)) == "2 + 3 * n"


def read_sizes(extra: str = "") -> list[ByteSize]:
    """Sizes that are read from memory: two from the same place, at two times."""
    text = f"""util.func @f(%r: !stream.resource<staging>, %bytes: index) -> (index, index) {{
      %c0 = arith.constant 0 : index
      %c64 = arith.constant 64 : index
      {extra}
      %0 = stream.resource.load %r[%c0] : !stream.resource<staging>{{%bytes}} -> i64
      %1 = arith.index_cast %0 : i64 to index
      %2 = stream.resource.load %r[%c0] : !stream.resource<staging>{{%c64}} -> i64
      %3 = arith.index_cast %2 : i64 to index
      util.return %1, %3 : index, index
    }}"""
    with ir.Context():
        module = ir.Module.parse(text)
        (end,) = find(module.operation, "util.return")
        return [size_of(value) for value in end.operands]


@pytest.mark.full
def test_what_is_read_from_memory_goes_by_its_place():
    first, second = read_sizes()
    assert not first.at_most(second) and not second.at_most(first)
    assert str(first) == "arith.index_cast(stream.resource.load 1 of 2)"
    again = "%x = stream.resource.load %r[%c0] : !stream.resource<staging>{%bytes} -> i64"
    assert not any(a.at_most(b) for a in read_sizes() for b in read_sizes(again))
