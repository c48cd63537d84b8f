"""Which tasks may overlap in time without raising the peak?

Comes in: an order, how many tasks a wave may hold, and a limit in bytes. Goes out: waves. Tasks of
one wave start together, so all that any of them touches is live at once.
"""

from collections.abc import Sequence

from pyc_mlir.pipelines.planner.storage import Storages, profile, run

# How far behind a wave a task is looked for, in tasks per place in the wave.
LOOK_AHEAD = 16


def group(
    model: Storages, order: Sequence[int], *, concurrency: int, limit: int | None
) -> tuple[tuple[int, ...], ...]:
    """Put independent tasks of `order` in waves of up to `concurrency`.

    With a `limit` that `order` itself keeps, the waves keep it too.
    """
    order = list(order)
    position = [0] * len(order)
    for i, t in enumerate(order):
        position[t] = i
    before = profile(model, order).before
    waves = []
    first = 0
    while first < len(order):
        wave = [order[first]]
        at = first + 1
        while at < min(len(order), first + LOOK_AHEAD * concurrency) and len(wave) < concurrency:
            place = first + len(wave)
            moved = [order[at], *order[place:at]]
            if not _may_join(model, order[first:at], order[at]) or not _fits(
                model, wave, moved, first, position, before, limit
            ):
                at += 1
                continue
            wave.append(order[at])
            part = run(model, moved, place, position, before[place])
            order[place : at + 1] = moved
            before[place : at + 2] = part.before
            for i in range(place, at + 1):
                position[order[i]] = i
            at += 1
        waves.append(tuple(wave))
        first += len(wave)
    return tuple(waves)


def _may_join(model: Storages, ahead: Sequence[int], task: int) -> bool:
    """Whether `task` follows none of the tasks from the wave's first up to its own place."""
    return model.predecessors[task].isdisjoint(ahead)


def _fits(
    model: Storages,
    wave: Sequence[int],
    moved: Sequence[int],
    first: int,
    position: Sequence[int],
    before: Sequence[int],
    limit: int | None,
) -> bool:
    """Whether the wave with `moved[0]`, and the tasks that it overtakes, stay within `limit`."""
    if limit is None:
        return True
    place = first + len(wave)
    after = run(model, moved, place, position, before[place]).during
    joint = [*wave, moved[0]]
    return max(after) <= limit and _live(model, joint, first, position, before[first]) <= limit


def _live(
    model: Storages, wave: Sequence[int], first: int, position: Sequence[int], live: int
) -> int:
    """Bytes that are live in `wave`, the tasks that run from position `first` on."""
    members = set(wave)
    users: dict[int, list[int]] = {}
    for t in wave:
        for s in model.touches[t]:
            users.setdefault(s, []).append(t)
    dying = set()
    for s, inside in users.items():
        others = [position[t] for t in model.touchers[s] if t not in members]
        if all(p >= first for p in others):
            live += model.size[s]
        if len(inside) == 1 and not model.stays[s] and all(p < first for p in others):
            dying.add(s)
    return live - sum(model.saved(t, dying.intersection(model.touches[t])) for t in wave)


def wave_profile(model: Storages, waves: Sequence[Sequence[int]]) -> list[int]:
    """Live bytes during each wave."""
    order = [t for wave in waves for t in wave]
    position = [0] * len(order)
    for i, t in enumerate(order):
        position[t] = i
    before = profile(model, order).before
    found, first = [], 0
    for wave in waves:
        found.append(_live(model, wave, first, position, before[first]))
        first += len(wave)
    return found
