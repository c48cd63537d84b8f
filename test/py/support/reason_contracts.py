"""Scenarios of reason codes: contracts, budgets, the cache (reason_table.py)."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from faults import fault
from reason_table import (
    DOT,
    FEW_BYTES,
    Codes,
    Here,
    X,
    fallback_codes,
    pair,
    provokes,
    reduced,
    reported,
    small,
)
from stream_programs import branches

import pyc_mlir
from pyc_mlir import Contract, Program, Service, Targets
from pyc_mlir.api import build
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.key import Identity
from pyc_mlir.cache.store import ARTIFACT, CacheStore, Unkeyed
from pyc_mlir.compilation import attempts
from pyc_mlir.compilation.build import Plan
from pyc_mlir.compilation.job import CHEAPEST, OFFERED
from pyc_mlir.compilation.job import STAGE_SITE as COMPILE_STAGE
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.jit import jit
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget, SmallestProgram
from pyc_mlir.pipelines.choices.choices import FALLBACK, Decision, Recipe
from pyc_mlir.pipelines.choices.contract import ROUNDING, STRICT
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.counts import PLACES, Faults
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.events import RunLog
from pyc_mlir.runtime.plans import Serving
from pyc_mlir.serve.batching import Batcher, Waiting
from pyc_mlir.serve.limits import Limits
from pyc_mlir.serve.models import model_of
from pyc_mlir.serve.protocol import unknown_address

# Contracts


@provokes(ReasonCode.UNSUPPORTED_CLAUSE)
def _(here: Here) -> Codes:
    return reported(lambda: make_options(target="cuda", contract=Contract(determinism=STRICT)))


@provokes(ReasonCode.COMPILE_TIMEOUT)
def _(here: Here) -> Codes:
    short = Contract(max_compile_seconds=1e-3)
    return reported(lambda: pyc_mlir.compile(small, [np.ones(3, np.float32)], contract=short))


@provokes(ReasonCode.COMPILE_DEGRADED)
def _(here: Here) -> Codes:
    why = Reason.of(ReasonCode.COMPILE_DEGRADED, "5 s")
    log = [Decision(COMPILE_STAGE, CHEAPEST, OFFERED, FALLBACK, grounds=(why,))]
    contract = Contract(max_compile_seconds=600)
    requested = make_options(contract=contract, recipe=Recipe.from_log(log))
    made = build(small, [np.ones(3, np.float32)], requested)
    return {ReasonCode[c.code] for c in made.contract_report.clauses}


@provokes(ReasonCode.UNCHECKABLE_CLAUSE)
def _(here: Here) -> Codes:
    return reported(lambda: Contract(latency_binding=True))


@provokes(ReasonCode.CONTRACT_CONFLICT)
def _(here: Here) -> Codes:
    both = ("iree",)
    return reported(lambda: Contract(determinism=STRICT, max_error=ROUNDING, fallbacks=both))


@provokes(ReasonCode.NO_ORACLE)
def _(here: Here) -> Codes:
    return reported(lambda: pair().compare_every(2))


@provokes(ReasonCode.LATENCY_MISSED)
def _(here: Here) -> Codes:
    contract = Contract(latency_goal_seconds=1e-9, latency_binding=True)
    return reported(lambda: pyc_mlir.compile(DOT, contract=contract))


@provokes(ReasonCode.NOT_DETERMINISTIC)
def _(here: Here) -> Codes:
    honest, count = Serving.answer, iter(range(100))

    def answer(self: Serving, inputs: Any) -> list[np.ndarray]:
        return [f + np.float32(next(count)) for f in honest(self, inputs)]

    here.patch.setattr(Serving, "answer", answer)
    contract = Contract(determinism=STRICT)
    return reported(lambda: pyc_mlir.compile(DOT, contract=contract))


@provokes(ReasonCode.WRONG_RESULT)
def _(here: Here) -> Codes:
    fault(here.patch, "5.000000e+02", "-1.0")
    return reported(lambda: pyc_mlir.compile(DOT, contract=Contract(max_error=ROUNDING)))


def _counted(*counts: int) -> tuple[RunLog, Callable[[], None]]:
    """Return a log, and a call whose products counted so many tiles."""
    found = np.zeros(PLACES, np.float32)
    found[: len(counts)] = counts
    log = RunLog()
    return log, lambda: Faults(log).take(to_device(found, Device("local-sync")))


@provokes(ReasonCode.FAULT_DETECTED)
def _(here: Here) -> Codes:
    return reported(_counted(0, 0, 1)[1])


@provokes(ReasonCode.FAULT_REPAIRED)
def _(here: Here) -> Codes:
    log, call = _counted(0, 1, 0)
    call()
    return {ReasonCode[code] for event in log._events for code in event.reasons[0].codes}


@provokes(ReasonCode.TRACE_MISMATCH)
def _(here: Here) -> Codes:
    def two_faced(x: Any) -> Any:
        return x + 1 if isinstance(x, np.ndarray) else x

    contract = Contract(max_error=ROUNDING)
    return reported(lambda: pyc_mlir.compile(two_faced, [spec("f32", (3,))], contract=contract))


@provokes(ReasonCode.STALE_CAPTURES)
def _(here: Here) -> Codes:
    here.patch.setenv("PYC_TEST_SCALE", "2")
    function = jit(
        lambda x: x * float(os.environ["PYC_TEST_SCALE"]),
        compile=lambda traced: lambda x: x,
        audit=1,
    )
    function(np.ones(3, np.float32))
    here.patch.setenv("PYC_TEST_SCALE", "3")
    return reported(lambda: function(np.ones(3, np.float32)))


@provokes(ReasonCode.FALLBACK_TAKEN)
def _(here: Here) -> Codes:
    fault(here.patch, "5.000000e+02", "-1.0")
    contract = Contract(max_error=ROUNDING, fallbacks=("iree",))
    return fallback_codes(pyc_mlir.compile(DOT, contract=contract).artifact.decisions)


@provokes(ReasonCode.BUDGET_IMPOSSIBLE)
def _(here: Here) -> Codes:
    options = make_options(kernels="iree", planner_mode="memory_first", contract=FEW_BYTES)
    return reported(lambda: build(branches().code.decode(), None, options))


@provokes(ReasonCode.BUDGET_NOT_FOUND)
def _(here: Here) -> Codes:
    dynamic = pyc_mlir.spec("f32", ("n", 3))
    contract = Contract(memory_budget_bytes=1 << 20)
    return reported(lambda: pyc_mlir.compile(reduced, [dynamic], contract=contract))


@provokes(ReasonCode.BUDGET_RETRY)
def _(here: Here) -> Codes:
    honest, tries = attempts.build, []

    def build_under(plan: Plan, setting: str) -> Any:
        tries.append(setting)
        if len(tries) == 1:
            raise BudgetNotKept(
                ByteBudget(1 << 20, 0, 1), SmallestProgram(0, 0, 2 << 20, 1.0, 1.0), proven=False
            )
        return honest(plan, setting)

    here.patch.setattr(attempts, "build", build_under)
    options = make_options(contract=Contract(memory_budget_bytes=1 << 20))
    return fallback_codes(build(small, [X], options).decisions)


# The cache

WHO = Identity({"numpy": "1"}, "s", {"cpu": "x"})


def _cached(here: Here, identity: Callable[[], Identity] = lambda: WHO) -> Codes:
    """The codes of one compile through the cache in the scenario's folder."""
    cache = Cache(CacheStore(here.folder / "cache"), identity=identity)
    options = make_options(kernels="iree", planner_mode="iree")
    record = build(small, [X], options, cache=cache).cached
    assert record is not None
    return {e.code for e in record.events}


@provokes(ReasonCode.CACHE_MISS)
def _(here: Here) -> Codes:
    codes = _cached(here)
    assert not _cached(here), "the second compile is a hit"
    return codes


@provokes(ReasonCode.CACHE_DAMAGED)
def _(here: Here) -> Codes:
    _cached(here)
    store = CacheStore(here.folder / "cache")
    path = store.path(store.entries()[0].name) / ARTIFACT
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return _cached(here)


@provokes(ReasonCode.CACHE_FOLDER)
def _(here: Here) -> Codes:
    (here.folder / "file").write_bytes(b"")
    store = CacheStore(here.folder / "file" / "below")
    return {e.code for e in store.write("0" * 64, b"{}", b"data")}


@provokes(ReasonCode.CACHE_BYPASSED)
def _(here: Here) -> Codes:
    def changed() -> Identity:
        raise Unkeyed("PyC's source changed")

    return _cached(here, changed)


# Programs in service


def tanh() -> Program:
    return pyc_mlir.compile(small, [spec(np.float32, X.shape)])


def service_codes(service: Service) -> Codes:
    """The codes of the log of a service."""
    own = {*ReasonCode.__members__}
    return {ReasonCode[r.code] for e in service.log() for r in e.reasons if r.code in own}


@provokes(ReasonCode.BUILD_SWAPPED)
def _(here: Here) -> Codes:
    with Service(tanh()) as service:
        service.swap(tanh())
        return service_codes(service)


@provokes(ReasonCode.TARGET_MISSED)
def _(here: Here) -> Codes:
    targets = Targets(p50_seconds=1e-9, window=1, actions=())
    with Service(tanh(), targets=targets) as service:
        service(X)
        return {ReasonCode[r.code] for r in service.health().reasons}


@provokes(ReasonCode.SERVICE_REFUSING)
def _(here: Here) -> Codes:
    targets = Targets(p50_seconds=1e-9, window=1, actions=["refuse"])
    with Service(tanh(), targets=targets) as service:
        service(X)
        return reported(lambda: service(X))


@provokes(ReasonCode.CALL_HANGS)
def _(here: Here) -> Codes:
    free = threading.Event()
    program = tanh()
    run = program._serving.run
    here.patch.setattr(program._serving, "run", lambda a: (free.wait(10), run(a))[1])
    with Service(program, hang_seconds=0.01) as service:
        thread = threading.Thread(target=service, args=(X,))
        thread.start()
        while not service.health().reasons:
            time.sleep(0.002)
        free.set()
        thread.join()
        return service_codes(service)


# The server


def queued(*waiting: Waiting, limit: int = 2) -> Codes:
    """The codes of requests behind a call that goes on until all are queued."""
    free, told = threading.Event(), []
    program = tanh()
    batcher = Batcher(lambda x: (free.wait(10), program(x))[1], told.extend, 1, limit, 0)
    batcher.submit(Waiting([X], 0, None, None))
    while batcher.waiting:
        time.sleep(0.001)
    found = {c for w in waiting for c in reported(lambda w=w: batcher.submit(w))}
    free.set()
    batcher.close()
    return found | {o.code for _, o in told if isinstance(o, PycError)}


@provokes(ReasonCode.SERVER_BUSY)
def _(here: Here) -> Codes:
    return queued(*(Waiting([X], 0, None, None) for _ in range(2)), limit=1)


@provokes(ReasonCode.DEADLINE_PASSED)
def _(here: Here) -> Codes:
    return queued(Waiting([X], 0, 0.0, None))


@provokes(ReasonCode.REQUEST_TOO_LARGE)
def _(here: Here) -> Codes:
    return reported(lambda: Limits(1024).require_size(2048))


@provokes(ReasonCode.UNAUTHORIZED)
def _(here: Here) -> Codes:
    return reported(lambda: Limits(token="secret").require_access({b"authorization": b"guess"}))


@provokes(ReasonCode.UNKNOWN_ADDRESS)
def _(here: Here) -> Codes:
    return {unknown_address("GET", "/v2/nowhere", "others").code}


@provokes(ReasonCode.UNKNOWN_MODEL)
def _(here: Here) -> Codes:
    return reported(lambda: model_of({}, "none", None))
