"""A compile that runs in workers: the cache first, then a job, then a stand-in if allowed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.verification import Checks
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.lookup import compiled
from pyc_mlir.cache.verifications import Verifications, noted, recalled
from pyc_mlir.compilation.contract_check import with_requested_options
from pyc_mlir.compilation.options import NO_KERNELS, Options
from pyc_mlir.pipelines.choices.contract import IREE_CODE
from pyc_mlir.util.logs import Stage
from pyc_mlir.worker.job import CompileJob


def in_workers(
    source: Any,
    inputs: Sequence[Any] | None,
    options: Options,
    stage: Stage,
    cache: Cache | None,
    untrusted: bool,
    build: Callable[..., Artifact],
    spent: float = 0.0,
) -> Artifact:
    """As `build`, with front end, compile and trials in worker processes.

    spent: seconds of the limit that are over already.
    build: makes what the fallback `iree` needs, should a call need it.
    """
    with CompileJob(source, inputs, options, stage, trusted=not untrusted, spent=spent) as job:
        made = job.compile() if cache is None else _through(cache, source, inputs, options, job)
    if untrusted and made.checks is not None:
        # Asked for calls, the reference would read the program in this process.
        made = replace(made, checks=replace(made.checks, oracle=None))
    made = with_requested_options(made, options)
    if IREE_CODE not in options.contract.fallbacks:
        return made
    # No limit counts when a call needs the fallback.
    unlimited = replace(options.contract, max_compile_seconds=None)
    other = replace(options, contract=unlimited, kernels=NO_KERNELS, recipe=None)
    again = partial(build, source, inputs, other, untrusted=untrusted)
    checks = replace(made.checks or Checks(), stand_ins={IREE_CODE: again})
    return replace(made, checks=checks)


def _through(
    cache: Cache, source: Any, inputs: Sequence[Any] | None, options: Options, job: CompileJob
) -> Artifact:
    """What the cache has, tried by a worker; else what the job compiles."""

    def load(*_: Any) -> tuple[Any, Any]:
        return source, job.part()

    # What a file holds is found out by the worker, which may crash and can be ended.
    made = compiled(cache, source, inputs, options, lambda *_: job.compile(), load, read=False)
    records = Verifications.of(cache, made.cached)
    if made.checks is not None:
        # What keeping the program took counts.
        return job.with_time(noted(made, records))
    return recalled(job.checked(made, records), records)
