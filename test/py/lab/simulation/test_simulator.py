"""Estimates are sums of what is known of each kernel, deterministic, and say what they rest on."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from wisdoms import KERNELS, row

from pyc_mlir import nn, simulate
from pyc_mlir.artifact.artifact import Artifact, from_bytes, to_bytes
from pyc_mlir.compilation.attempts import build_here
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.lab.simulation.residuals import PROGRAM, Residual, Residuals
from pyc_mlir.lab.simulation.simulator import MEASURED, Overheads, Simulator, comparison
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.profile.dispatches import report_of

RNG = np.random.default_rng(0)
W1, W2 = (RNG.standard_normal((64, 64), dtype=np.float32) for _ in range(2))


def program(x):
    """Four kernels, one of them twice in work: three products and a softmax."""
    hidden = nn.softmax(nn.relu(x @ W1) @ W2)
    return nn.relu(nn.relu(hidden @ W1) @ W2) + x


@cache
def artifact() -> Artifact:
    """The program, compiled once."""
    return build_here(Job.of(program, [spec("f32", (32, 64))], make_options()))


@cache
def wide() -> Artifact:
    """A product that all cores of its target share."""
    w = RNG.standard_normal((512, 512), dtype=np.float32)
    return build_here(Job.of(lambda x: x @ w, [spec("f32", (512, 512))], make_options()))


def kernel_sites() -> list[str]:
    return [d.site.key for d in artifact().decisions if d.site.pass_name == KERNELS]


def wisdom_of_all(factor: float = 1.0, **changes) -> Wisdom:
    """A row for each alternative of each kernel: `factor` times what was predicted."""
    found = [d for d in artifact().decisions if d.site.pass_name == KERNELS]
    rows = [
        row(d.site.work, a.name, factor * a.cost.seconds, **changes)
        for d in found
        for a in d.alternatives
        if a.cost is not None
    ]
    return Wisdom.of(rows, {})


def test_without_evidence_it_is_the_sum_of_the_memory_report():
    """Kernels and dispatches as the compile predicted them, in the order of a call."""
    tasks = [t.seconds for r in report_of(artifact()).regions for t in r.tasks]
    estimate = simulate(artifact())
    assert estimate.seconds == pytest.approx(math.fsum(tasks), rel=1e-9)
    assert estimate.lo < estimate.seconds < estimate.hi
    assert estimate.bytes == artifact().account.total()
    assert estimate.exact
    assert (estimate.measured, estimate.overhead) == (0, 0)
    assert not estimate.width.calibrated
    assert len(estimate.unknown) == len({s.work for s in estimate.sites})


def test_a_recipe_changes_its_own_sites_alone():
    before, key = simulate(artifact()), kernel_sites()[1]
    after = simulate(artifact(), {key: "iree"})
    changed = [s for s in after.sites if s.difference]
    assert [s.site for s in changed] == [key]
    assert after.seconds - before.seconds == pytest.approx(changed[0].difference)
    assert not after.exact
    assert "changes what is planned" in after.why_bytes


def test_measured_rows_take_the_place_of_predictions():
    wisdom = wisdom_of_all(3.0)
    estimate = simulate(artifact(), wisdom=wisdom)
    sites = [d for d in artifact().decisions if d.site.pass_name == KERNELS]
    costs = [a.cost.seconds for d in sites for a in d.alternatives if a.cost and a.name == d.chosen]
    assert estimate.measured == pytest.approx(3 * math.fsum(costs))
    assert {s.price.grounds for s in estimate.sites} == {MEASURED}
    assert estimate.unknown == ()
    assert estimate.hi / estimate.lo < simulate(artifact()).hi / simulate(artifact()).lo


@pytest.mark.parametrize("changes", [{"hardware": "h1-other"}, {"toolchain": "t1-other"}])
def test_rows_of_elsewhere_are_no_answers(changes):
    foreign = simulate(artifact(), wisdom=wisdom_of_all(9.0, **changes))
    assert foreign == simulate(artifact())


def test_clocks_and_contexts_are_not_mixed():
    """The set of rows that answers most sites is used; the others are predicted."""
    every = wisdom_of_all(2.0, clock="wall")
    one = replace(every.rows[0], clock="cpu", seconds=1.0, lo=0.9, hi=1.1)
    assert simulate(artifact(), wisdom=Wisdom.of([*every.rows, one], {})).measured < 1e-3


def test_cold_rows_count_by_the_share_that_the_cache_does_not_hold():
    warm, cold = wisdom_of_all(1.0), wisdom_of_all(5.0, constants="cold")
    both = Wisdom.of([*warm.rows, *cold.rows], {})
    simulator = Simulator.of(artifact(), both)
    small = replace(simulator.program.target, l3_bytes=0, l2_bytes=1)
    crowded = replace(simulator, program=replace(simulator.program, target=small))
    fits = simulator.estimate().measured
    assert fits == pytest.approx(simulate(artifact(), wisdom=warm).measured)
    assert crowded.estimate().measured == pytest.approx(5 * fits, rel=1e-3)
    only = simulate(artifact(), wisdom=cold)
    assert only.measured == pytest.approx(5 * fits)


def test_a_call_counts_once_though_every_row_has_one():
    wisdom = wisdom_of_all(1e3)
    plain = Simulator.of(artifact(), wisdom)
    called = replace(plain, overheads=Overheads(call_seconds=1e-6))
    more = plain.estimate().seconds - called.estimate().seconds
    assert more == pytest.approx((len(kernel_sites()) - 1) * 1e-6)


def test_a_log_s_costs_follow_the_threads_of_the_call():
    """Costs of a log have no operations; those of the memory report tell what a thread gains."""
    one, every = (Simulator.of(wide(), threads=n) for n in (1, 0))
    several = one.program.target.cores > 1
    assert (one.estimate().seconds > every.estimate().seconds) == several
    key = one.program.kernels[0].site.key
    assert all(c.flops == 2 * 512**3 for c in one.program.sites[key].costs.values())


def test_recipes_name_sites_by_op_by_work_and_by_pass():
    every = {key: "iree" for key in kernel_sites()}
    by_pass = simulate(artifact(), {KERNELS: "iree"})
    works = {f"{KERNELS}:{s.work}": "iree" for s in by_pass.sites}
    other = Recipe({"x:y": "z"}, made_for="another", works=works)
    assert by_pass == simulate(artifact(), every) == simulate(artifact(), works)
    assert by_pass == simulate(artifact(), other)


def test_a_knob_set_without_a_row_costs_what_its_kernel_does():
    site = next(s for s in simulate(artifact()).sites if s.choice.startswith("gemm"))
    chosen = f"{site.choice}[rows=4]"
    assert simulate(artifact(), {site.site: chosen}).seconds == simulate(artifact()).seconds
    known = Wisdom.of([row(site.work, chosen, 1e-3)], {})
    assert simulate(artifact(), {site.site: chosen}, known).measured > 0.9e-3


@pytest.mark.parametrize("recipe", [{"pyc-fuse:nowhere": "keep"}, {KERNELS: "no such kernel"}])
def test_what_the_program_does_not_offer_is_refused(recipe):
    with pytest.raises(PycError, match=r"what-if: .*: expected") as caught:
        simulate(artifact(), recipe)
    assert caught.value.code is ReasonCode.RECIPE_MISMATCH


def test_structure_is_priced_by_its_traffic_and_said():
    key = next(d.site.key for d in artifact().decisions if d.site.pass_name == "pyc-fuse")
    kept = simulate(artifact(), {key: "keep"})
    assert kept.seconds > simulate(artifact()).seconds
    assert not kept.exact
    fusion = simulate(artifact(), {"iree-fusion": "unfused"})
    assert fusion.notes


def test_a_log_of_the_program_is_its_own_recipe():
    assert simulate(artifact(), Recipe.from_log(artifact().decisions)) == simulate(artifact())


def test_a_lowered_program_has_no_bytes_yet():
    lowered = lower(Job.of(program, [spec("f32", (32, 64))], make_options()))
    estimate = simulate(lowered)
    assert estimate.seconds == pytest.approx(simulate(artifact()).seconds)
    assert (estimate.bytes, estimate.exact) == (None, False)


def test_an_artifact_that_was_stored_gives_the_same_estimate():
    again = from_bytes(to_bytes(artifact()))
    assert simulate(again) == simulate(artifact())
    assert simulate(again).bytes == simulate(artifact()).bytes


def test_residuals_correct_predictions_and_calibrate_intervals():
    here = Simulator.of(artifact()).here.environment
    rows = [Residual(here, "gemm", f"w{i}", 1, 2) for i in range(50)]
    rows += [Residual(here, PROGRAM, f"p{i}", 1, 1 + i / 100, 0.1) for i in range(20)]
    estimate = simulate(artifact(), residuals=Residuals.of(rows))
    assert estimate.seconds > 1.5 * simulate(artifact()).seconds
    assert estimate.width.calibrated


@pytest.mark.full
def test_a_comparison_says_what_changed_and_on_what_grounds():
    before = simulate(artifact())
    text = comparison(simulate(artifact(), {KERNELS: "iree"}), before)
    assert text.count("predicted -> ") == len(kernel_sites())
    assert "not calibrated" in text
    assert "rests on     0 ns measured" in text
    assert f"0 of {len(kernel_sites())} kernels are the same" in text
    same = comparison(before, before)
    assert f"{len(kernel_sites())} of {len(kernel_sites())} kernels are the same" in same
