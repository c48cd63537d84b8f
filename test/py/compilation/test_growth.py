"""Work of a compile in proportion to the program: counted at two sizes, never timed."""

import cProfile
import pstats
from collections import Counter
from functools import reduce
from typing import Any

import numpy as np
import pytest

from pyc_mlir.compilation.build import plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import emit, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.iree.barriers import MOST_STEPS, part_long_chains
from pyc_mlir.iree.compiler import IreeSession

X = np.ones(64, np.float32)


def chain(n: int) -> Any:
    return lambda v: reduce(lambda x, _: np.tanh(x), range(n), v)


def terms(n: int) -> Any:
    return lambda v: reduce(lambda s, i: s + v * np.float32(i + 1.5), range(n), v)


def results(n: int) -> Any:
    return lambda v: tuple(v + np.float32(i) for i in range(n))


def calls(function: Any) -> Counter[tuple[str, int, str]]:
    """How often each Python function is called by a compile up to its memory plan."""
    profile, options = cProfile.Profile(), make_options()
    profile.runcall(lambda: plan_only(lower(Job.of(function, [X], options)), options))
    stats: Any = pstats.Stats(profile)
    return Counter({where: count[1] for where, count in stats.stats.items()})


@pytest.mark.parametrize(("made", "n"), [(results, 20), (terms, 60), (chain, 20)])
def test_no_function_is_called_more_than_twice_as_often_as_the_program_grows(made, n):
    small, large = calls(made(n)), calls(made(4 * n))
    frequent = {where: n for where, n in large.items() if n > 4000}
    # Of a few calls most are the same in every compile.
    grown = {where: n for where, n in frequent.items() if n > 8 * max(small[where], 250)}
    assert not grown


@pytest.mark.parametrize("n", [16, 200])
def test_the_terms_of_a_sum_are_made_where_they_are_added(n):
    text, _ = emit(Job.of(terms(n), [X], make_options()), "pyc")
    kernels = [line for line in text.splitlines() if line.startswith("    ") and line[4] == "%"]
    computed = [line for line in kernels if '"pyc.constant"' not in line]
    assert len(computed) <= 1 + n / 6


@pytest.mark.parametrize(("n", "barriers"), [(400, 0), (1600, 3)])
def test_a_long_chain_becomes_several_dispatches(n, barriers):
    with IreeSession() as session:
        session.parse(lower(Job.of(chain(n), [X], make_options())).code)
        assert part_long_chains(session.module) == barriers >= n * 8 // MOST_STEPS
