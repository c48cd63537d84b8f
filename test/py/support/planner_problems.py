"""Planning problems for tests: known shapes, random ones, and slow models that cannot be wrong."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from hypothesis import strategies as st

from pyc_mlir.pipelines.memory.planner.problem import Buffer, PlannedTask, PlanningProblem
from pyc_mlir.pipelines.memory.planner.storage import storages

MIB = 1 << 20


def chain(count: int, size: int = 64, in_place: bool = False) -> PlanningProblem:
    """A pinned input, `count` tasks one after the other, the last result pinned."""
    buffers = [Buffer(size, pinned=True)]
    buffers += [Buffer(size, pinned=i == count - 1) for i in range(count)]
    tasks = [
        PlannedTask(f"t{i}", (i,), (i + 1,), 1.0, True, ((i + 1, i),) if in_place else ())
        for i in range(count)
    ]
    return PlanningProblem(tuple(tasks), tuple(buffers))


def branches(count: int = 8, size: int = 4 * MIB) -> PlanningProblem:
    """`count` branches of two tasks each, all reduced at the end: the order to avoid."""
    buffers = [Buffer(size, pinned=True)]
    tasks, ends = [], []
    for i in range(count):
        first = len(buffers)
        buffers += [Buffer(size), Buffer(size)]
        tasks.append(PlannedTask(f"a{i}", (0,), (first,), 1.0, True))
        tasks.append(PlannedTask(f"b{i}", (first,), (first + 1,), 1.0, True))
        ends.append(first + 1)
    total = ends[0]
    for i in range(1, count):
        result = len(buffers)
        buffers.append(Buffer(size, pinned=i == count - 1))
        tasks.append(PlannedTask(f"add{i}", (total, ends[i]), (result,), 1.0))
        total = result
    return PlanningProblem(tuple(tasks), tuple(buffers))


def skips(depth: int = 6, size: int = 1024) -> PlanningProblem:
    """A U-Net: halved on the way down, doubled on the way up, which reads the way down again."""
    buffers = [Buffer(size, pinned=True)]
    tasks, down = [], []
    for level in range(depth):
        buffers += [Buffer(size >> level), Buffer(size >> (level + 1))]
        wide = len(buffers) - 2
        tasks.append(PlannedTask(f"wide{level}", (wide - 1,), (wide,), 1.0, True))
        tasks.append(PlannedTask(f"down{level}", (wide,), (wide + 1,), 1.0, True))
        down.append(wide)
    at = len(buffers) - 1
    for level in reversed(range(depth)):
        buffers.append(Buffer(size >> level, pinned=level == 0))
        tasks.append(PlannedTask(f"up{level}", (at, down[level]), (len(buffers) - 1,), 4.0))
        at = len(buffers) - 1
    return PlanningProblem(tuple(tasks), tuple(buffers))


def layered(count: int, seed: int, width: int = 20) -> PlanningProblem:
    """`count` tasks that read up to three of the last results, sizes over five octaves."""
    random = Random(seed)
    buffers, tasks = [Buffer(0, pinned=True)], []
    for t in range(count):
        near = range(max(0, t + 1 - width), t + 1)
        reads = tuple(dict.fromkeys(random.choice(near) for _ in range(random.randint(1, 3))))
        buffers.append(Buffer(random.choice([1, 2, 4, 8, 16, 32]) * 4096))
        own = len(buffers) - 1
        pairs = [(own, b) for b in reads if buffers[b].size == buffers[own].size]
        in_place = tuple(p for p in pairs if random.random() < 0.5)
        tasks.append(PlannedTask(f"t{t}", reads, (own,), random.uniform(1, 10), True, in_place))
    return PlanningProblem(tuple(tasks), tuple(buffers))


@st.composite
def problems(draw: st.DrawFn, max_tasks: int = 8, ties: bool = True, concurrency: int = 1):
    """Small problems with everything in them: pins, ties, several results, extra dependencies."""
    sizes = st.sampled_from([0, 64, 64, 128, 256, 1000])
    buffers = [Buffer(draw(sizes), pinned=True)]
    tasks: list[PlannedTask] = []
    stale: set[int] = set()
    for t in range(draw(st.integers(1, max_tasks))):
        usable = [b for b in range(len(buffers)) if b not in stale]
        reads = tuple(draw(st.lists(st.sampled_from(usable), max_size=3, unique=True)))
        # What is updated cannot live on as it was.
        updatable = reads and not buffers[reads[0]].lives_to_end
        tie = ties and updatable and draw(st.integers(0, 5)) == 0
        writes, tied = [], ()
        for i in range(draw(st.sampled_from([1, 1, 1, 2]))):
            writes.append(len(buffers))
            size = draw(sizes)
            if tie and i == 0:
                size, tied = buffers[reads[0]].size, ((writes[0], reads[0]),)
                stale.add(reads[0])
            pinned, stays = draw(st.integers(0, 7)) == 0, draw(st.integers(0, 9)) == 0
            buffers.append(Buffer(size, pinned=pinned, lives_to_end=stays))
        free = [b for b in reads if not tied]
        pairs = [(w, r) for w in writes for r in free if draw(st.booleans())]
        after = tuple(draw(st.lists(st.integers(0, t - 1), max_size=1))) if t else ()
        again = not tied and draw(st.booleans())
        seconds = draw(st.integers(0, 9))
        tasks.append(
            PlannedTask(f"t{t}", reads, tuple(writes), seconds, again, tuple(pairs), tied, after)
        )
    return PlanningProblem(tuple(tasks), tuple(buffers), concurrency)


def naive_profile(
    problem: PlanningProblem, waves: Sequence[Sequence[int]], reuse: bool = True
) -> list[int]:
    """Live bytes per wave, straight from the definition."""
    model = storages(problem, reuse)
    when = {t: w for w, wave in enumerate(waves) for t in wave}
    spans = {}
    for s, group in enumerate(model.touchers):
        if group:
            last = len(waves) - 1 if model.stays[s] else max(when[t] for t in group)
            spans[s] = min(when[t] for t in group), last
    live = [0] * len(waves)
    for s, (first, last) in spans.items():
        for w in range(first, last + 1):
            live[w] += model.size[s]
    for w, wave in enumerate(waves):
        for t in wave:
            dying = {
                s
                for s in model.touches[t]
                if spans[s][1] == w and [x for x in wave if s in model.touches[x]] == [t]
            }
            live[w] -= best_saving(model.swaps[t], dying, model.size)
    return live


def best_saving(pairs, dying, size) -> int:
    """The most bytes of any matching, by trying them all."""
    usable = [p for p in pairs if p[1] in dying]
    if not usable:
        return 0
    (result, operand), rest = usable[0], usable[1:]
    apart = tuple(p for p in rest if result != p[0] and operand != p[1])
    without = best_saving(rest, dying, size)
    return max(without, size[operand] + best_saving(apart, dying, size))


def orders(problem: PlanningProblem):
    """Every legal order of a small problem."""

    def extend(order: list[int]):
        if len(order) == len(problem.tasks):
            yield list(order)
        for t in range(len(problem.tasks)):
            if t not in order and problem.predecessors[t] <= set(order):
                yield from extend([*order, t])

    yield from extend([])


def topological(problem: PlanningProblem, order) -> bool:
    """Whether `order` holds each task once, after those that it has to follow."""
    at = {t: i for i, t in enumerate(order)}
    complete = sorted(order) == list(range(len(problem.tasks)))
    return complete and all(at[p] < at[t] for t in at for p in problem.predecessors[t])


def never_rising(values) -> bool:
    """Whether no value is above the one before it."""
    return all(b <= a for a, b in pairwise(values))


def expressions(problem: PlanningProblem, steps, sources) -> dict[int, str]:
    """What every buffer's first copy and every pinned buffer holds at the end, symbolically.

    Storage is simulated for ties: an update spoils its operand, and reading that raises KeyError.
    """
    held = {(b, 0): f"in{b}" for b in range(len(problem.buffers)) if b not in problem.writer}
    final: dict[int, str] = {}
    for step in steps:
        task = problem.tasks[step.task]
        reads = [(b, sources.get((step, b), 0)) for b in task.reads]
        text = f"{step.task}({','.join(str(hash(held[r])) for r in reads)})"
        for _, operand in task.tied:
            del held[operand, sources.get((step, operand), 0)]
        for i, b in enumerate(task.writes):
            held[b, step.copy] = f"{text}.{i}"
            assert final.setdefault(b, held[b, step.copy]) == held[b, step.copy]
    return final
