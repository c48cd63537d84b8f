"""A compile that runs in workers: the cache first, then a job, then a stand-in if allowed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.verification import Checks
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.lookup import compiled
from pyc_mlir.cache.verifications import Verifications, noted, recalled
from pyc_mlir.compilation.contract_check import with_requested_options
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import NO_KERNELS
from pyc_mlir.pipelines.choices.contract import IREE_CODE
from pyc_mlir.util.logs import Stage
from pyc_mlir.worker.compile import WorkerCompile


def in_workers(
    job: Job,
    stage: Stage,
    cache: Cache | None,
    untrusted: bool,
    build: Callable[..., Artifact],
    spent: float = 0.0,
) -> Artifact:
    """Compile as `build` does, with front end, compile and trials in worker processes.

    spent: seconds of the limit that are over already.
    build: makes what the fallback `iree` needs, should a call need it.
    """
    options = job.options
    with WorkerCompile(job, stage, trusted=not untrusted, spent=spent) as work:
        made = work.compile() if cache is None else _through(cache, job, work)
    if untrusted and made.checks is not None:
        # Asked for calls, the reference would read the program in this process.
        made = replace(made, checks=replace(made.checks, oracle=None))
    made = with_requested_options(made, options)
    if IREE_CODE not in options.contract.fallbacks:
        return made
    # No limit counts when a call needs the fallback.
    unlimited = replace(options.contract, max_compile_seconds=None)
    other = replace(options, contract=unlimited, kernels=NO_KERNELS, recipe=None)
    again = partial(build, job.under(other), untrusted=untrusted)
    checks = replace(made.checks or Checks(), stand_ins={IREE_CODE: again})
    return replace(made, checks=checks)


def _through(cache: Cache, job: Job, work: WorkerCompile) -> Artifact:
    """Return what the cache has, tried by a worker; else what the worker compiles."""
    # What a file holds is found out by the worker, which may crash and can be ended.
    made = compiled(
        cache, job, lambda _: work.compile(), lambda job, _: (job, work.part()), read=False
    )
    records = Verifications.of(cache, made.cached)
    if made.checks is not None:
        # What keeping the program took counts.
        return work.with_time(noted(made, records))
    return recalled(work.checked(made, records), records)
