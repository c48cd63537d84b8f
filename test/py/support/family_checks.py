"""Kernels that families offer for drawn groups of ops, run against what the ops compute.

The exact values and how far a correct kernel may be off are the ops' own: each op of the group is
computed by its numpy reference with the deviation of its result (`UncertainBuilder`), so that no
family needs a reference. What a kernel is allowed beyond roundings stands in `ALLOWED`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import prod
from random import Random
from typing import Any

import numpy as np
from kernel_runs import Kernels, in_place
from kernel_works import Group, drawn

from pyc_mlir.dialects.numerics.approximation import WAYS
from pyc_mlir.dialects.numerics.rounding import LAMBDA, Uncertain, roundoff
from pyc_mlir.dialects.numerics.uncertain import UncertainBuilder
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.pipelines.kernels.counts import COUNTED, COUNTS, MOST_WORKGROUPS
from pyc_mlir.pipelines.kernels.families.conv.winograd import matrices
from pyc_mlir.pipelines.kernels.knobs import with_settings
from pyc_mlir.pipelines.kernels.lang.attributes import APPROXIMATED, CHECKED
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import F32, Work, WorkOp

# Compiled as one module.
BATCH = 34
# Several, so that kernels have several workgroups.
CORES = 3
# So many groups without an offer are drawn only where a target has no kernel of the family.
_MOST_DRAWS = 200
_PLAIN = {made: plain for table in (CHECKED, APPROXIMATED) for plain, made in table.items()}


@dataclass(frozen=True)
class Case:
    """A kernel for the first ops of a group; `calls` are contents of its inputs."""

    family: str
    work: Work
    offer: KernelOffer
    calls: Sequence[Sequence[np.ndarray]]

    @property
    def knobs(self) -> Any:
        return self.offer.knobs


def cases(name: str, target: Target, seed: str | int, count: int, variants: int = 1) -> list[Case]:
    """Return `count` kernels that the family offers, each with some others of its space."""
    random, wanted = Random(f"{name} {target.name} {seed}"), count * (1 + variants)
    found: list[Case] = []
    vain = 0
    while len(found) < wanted and vain < _MOST_DRAWS:
        made = list(_cases(name, drawn(name, random), target, random))
        vain = 0 if made else vain + 1
        for case in made:
            found += [case, *_variants(case, target, random, variants)]
    return found[:wanted]


def _cases(name: str, group: Group, target: Target, random: Random) -> Iterator[Case]:
    values = np.random.default_rng(random.randrange(1 << 30))
    calls = [group.arrays(values) for _ in range(3 if group.dynamic else 2)]
    work = group.work
    for offer in offers(name, work, cored(target, random), random):
        yield Case(name, work, offer, calls)


def cored(target: Target, random: Random) -> Target:
    """Return the target with one core, or with several."""
    return replace(target, cores=random.choice((1, CORES)))


def offers(name: str, work: Work, target: Target, random: Random) -> Iterator[KernelOffer]:
    """Yield a family's kernels for a group, those that stand for other families' included."""
    for offer in FAMILIES[_PLAIN.get(name, name)].match(work, target):
        if name in CHECKED.values():
            made = FAMILIES[name].checked(offer, target)
        elif name in APPROXIMATED.values():
            allowed = random.choice((3e-1, 1e-1, 3e-2, 1e-2, 1e-3))
            made = FAMILIES[name].approximated(offer, target, random.choice(WAYS), allowed)
        else:
            made = offer
        if made is not None:
            yield made


def _variants(case: Case, target: Target, random: Random, count: int) -> Iterator[Case]:
    """Yield some other legal knob sets of the space around an offer, which is its default."""
    target = replace(target, cores=CORES)
    space = FAMILIES[case.family].space(case.offer, target)
    if space is None:
        return
    assert space.is_legal(space.default) and not space.label(space.default)
    assert with_settings(case.knobs, space.settings(space.default)) == case.knobs
    tried = (tuple(random.randrange(len(a.values)) for a in space.axes) for _ in range(64))
    for config in islice(filter(space.is_legal, tried), count):
        assert space.labelled(space.label(config)) == config
        knobs = with_settings(case.knobs, space.settings(config))
        assert FAMILIES[case.family].offers(knobs, target)
        yield replace(case, offer=replace(case.offer, knobs=knobs))


def check(target: Target, made: Sequence[Case]) -> None:
    """All calls of all kernels are as near to what the ops compute as these say."""
    telling = []
    for start in range(0, len(made), BATCH):
        batch = made[start : start + BATCH]
        named = [(f"k{i}", case) for i, case in enumerate(batch)]
        kernels = [placed(c.knobs.kernel(name), i) for i, (name, c) in enumerate(named)]
        run = Kernels(target, kernels)
        for kernel, (name, case) in zip(kernels, named, strict=True):
            for call in case.calls:
                got = run.run(name, *fed(kernel, case, call))
                telling.append(compare(case, got, expected(case, call)))
    known = np.mean(telling)
    assert known > 0.6, f"tolerances that hold for anything show nothing: {known}"


def placed(kernel: Kernel, number: int) -> Kernel:
    """Return every other kernel with its result in an input's memory, where it declares that."""
    return (in_place(kernel) or kernel) if number % 2 else kernel


def fed(kernel: Kernel, case: Case, call: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield what a call of the kernel takes: values under its dimensions, constants laid out."""
    feeds = iter(case.offer.feeds)
    for operand in kernel.inputs:
        if operand in COUNTED:
            yield np.zeros(MOST_WORKGROUPS * COUNTS, np.float32)
            continue
        feed = next(feeds)
        array = under(call[feed.value], feed)
        if operand.layout is not None:
            assert array.shape == operand.layout.shape
            array = operand.layout.pack(array)
        known = zip(operand.shape, array.shape, strict=True)
        assert all(isinstance(d, str) or d == size for d, size in known), (operand, array.shape)
        yield array.view(np.int8) if array.dtype == np.uint8 else array
    assert next(feeds, None) is None


def under(array: np.ndarray, feed: Feed) -> np.ndarray:
    """Return a value under the dimensions of an operand."""
    cuts = (0, *feed.cuts, array.ndim)
    return array.reshape([prod(array.shape[a:b]) for a, b in pairwise(cuts)])


def expected(case: Case, call: Sequence[np.ndarray]) -> Uncertain:
    """Return what the covered ops compute, and how far the kernel may be off."""
    more = ALLOWED.get(case.family)
    values = [Uncertain.exact(array) for array in call]
    for node in case.work.nodes[: case.offer.covers]:
        operands = [values[v] for v in node.operands]
        made = computed(node.name, *operands, **node.params)
        off = None if more is None else more(case.knobs, node, operands, made.value)
        if off is not None:
            made = replace(made, deviation=made.deviation + off)
        values.append(made)
    return values[-1]


def computed(name: str, *operands: Uncertain | np.ndarray, **params: Any) -> Uncertain:
    """Return what an op computes, and how far a correct kernel may be off."""
    given = [o if isinstance(o, Uncertain) else Uncertain.exact(o) for o in operands]
    return UncertainBuilder().build(OPS[name], *given, **params)


def compare(case: Case, got: np.ndarray, want: Uncertain) -> float:
    """Compare a result; return the share of its numbers whose tolerance says something."""
    exact = want.value
    if got.dtype != exact.dtype and got.itemsize == exact.itemsize:
        got = got.view(exact.dtype)
    got = got.reshape(exact.shape)
    tolerance = np.broadcast_to(want.tolerance, exact.shape)
    wide, found = exact.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = (found == wide) | (np.abs(found - wide) <= tolerance) | np.isinf(tolerance)
    near |= np.isnan(found) & np.isnan(wide)
    if not near.all():
        place = tuple(int(i[0]) for i in np.nonzero(~near))
        raise AssertionError(
            f"{case.family}: {case.knobs}: of {near.size} numbers {np.sum(~near)} are off, first "
            f"at {place} of {exact.shape}: expected {wide[place]} within {tolerance[place]}, "
            f"got {found[place]}"
        )
    size = np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0)
    return float(np.mean(tolerance <= max(0.3 * size, 1.5 if exact.dtype.kind in "iu" else 1e-30)))


def _approximation(
    knobs: Any, node: WorkOp, operands: Sequence[Uncertain], value: np.ndarray
) -> np.ndarray | None:
    """Allow a share of the greatest number of a row in a panel; the kernel checks each tile."""
    if node.name != "matmul":
        return None
    sizes = np.abs(value.astype(np.float64))
    starts = np.arange(0, value.shape[-1], knobs.product.panel)
    most = np.maximum.reduceat(sizes, starts, axis=-1)
    return knobs.allowed / LAMBDA * np.repeat(most, knobs.product.panel, -1)[..., : sizes.shape[-1]]


def _other_sums(
    knobs: Any, node: WorkOp, operands: Sequence[Uncertain], value: np.ndarray
) -> np.ndarray | None:
    """Allow roundings relative to the terms of the transforms, which are larger than the sums."""
    if node.name != "conv2d":
        return None
    parts, m, side = matrices(knobs.m), knobs.m, knobs.m + 2
    at, g, bt = (np.abs(a) for a in (parts.at, parts.g, parts.bt))
    x, w = (np.abs(o.value.astype(np.float64)) for o in operands)
    spectrum = np.einsum("pi,qj,ijcf->pqcf", g, g, w)
    high, wide = (-(-size // m) * m for size in value.shape[1:3])
    top, left, *_ = node.params["pads"]
    padded = np.pad(x, ((0, 0), (top, high + 2), (left, wide + 2), (0, 0)))
    sizes = np.zeros((len(x), high, wide, value.shape[3]))
    for i in range(0, sizes.shape[1], m):
        for j in range(0, sizes.shape[2], m):
            tile = padded[:, i : i + side, j : j + side]
            moved = np.einsum("pi,qj,nijc->npqc", bt, bt, tile)
            made = np.einsum("npqc,pqcf->npqf", moved, spectrum)
            sizes[:, i : i + m, j : j + m] = np.einsum("ip,jq,npqf->nijf", at, at, made)
    steps = x.shape[3] + 4 * side + 8
    return np.sqrt(steps) * roundoff(F32) * sizes[:, : value.shape[1], : value.shape[2]]


# By family: the deviation that the result of an op may have beside that of its roundings.
ALLOWED: Mapping[str, Callable[..., np.ndarray | None]] = {
    "approximate_gemm": _approximation,
    "winograd": _other_sums,
}


def knobs_of(name: str, target: Target, seed: str | int, count: int) -> list[Any]:
    """Return knobs of so many kernels of a family; fewer where the target has none."""
    return [case.knobs for case in cases(name, target, seed, -(-count // 2))][:count]
