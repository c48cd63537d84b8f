import json
from dataclasses import fields
from typing import Any

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.pipelines.choices.contract import ClauseReport, Contract, ContractReport, Status
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.target.target import Target

GIVEN: dict[str, Any] = {
    "memory_budget_bytes": 1 << 20,
    "max_concurrency": 2,
    "max_compile_seconds": 5.0,
    "determinism": "strict",
    "max_error": 1e-3,
    "latency_goal_seconds": 0.01,
    "latency_binding": True,
    "allowed_targets": ("cpu",),
    "detect_faults": True,
    "fallbacks": ("modes",),
}


# What a clause needs beside it.
NEEDS: dict[str, dict[str, Any]] = {
    "fallbacks": {"max_error": "rounding"},
    "latency_binding": {"latency_goal_seconds": 1.0},
}


def test_empty_contract_is_kept():
    assert Contract().given() == {}
    Contract().check(target="cuda")


@pytest.mark.parametrize("clause", [f.name for f in fields(Contract)])
def test_each_clause_may_stand_alone(clause):
    requested = {clause: GIVEN[clause], **NEEDS.get(clause, {})}
    contract = Contract(**requested)
    assert contract.given() == requested
    contract.check()


def test_allowed_targets():
    contract = Contract(allowed_targets=("cpu", "vulkan"))
    contract.check(target="cpu")
    with pytest.raises(PycError, match="expected one of cpu, vulkan, got target 'cuda'"):
        contract.check(target="cuda")
    Contract(allowed_targets=("cuda",)).check(target=Target.named("cuda").name)
    with pytest.raises(PycError, match=r"among cpu, cpu-avx2, .*, vulkan, got \('tpu',\)"):
        Contract(allowed_targets=("tpu",))


NAN, INF = float("nan"), float("inf")
IMPOSSIBLE: dict[str, tuple[Any, ...]] = {
    "memory_budget_bytes": (0, True, 1.5, INF, 2**63),
    "max_compile_seconds": (-1.0, INF, 1e300, 10**400),
    "max_concurrency": (None, 2**31, 1.5),
    "latency_binding": ("false", 1),
    "latency_goal_seconds": (NAN, "5 parsecs"),
    "allowed_targets": ("cpu", (1,), ("cpu", "tpu")),
    "max_error": (-1e-9, 1.0, NAN, "little"),
    "determinism": ("loose",),
    "fallbacks": (("prayer",), ("none", "none")),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in IMPOSSIBLE.items() for v in vs])
def test_impossible_values(name, value):
    with pytest.raises(PycError, match="expected") as caught:
        Contract(**{name: value})
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_round_trip():
    for contract in (Contract(), Contract(**GIVEN)):
        assert Contract.of(json.loads(json.dumps(to_data(contract)))) == contract


def test_unknown_clause_is_refused():
    with pytest.raises(PycError, match="`power_budget_watts`") as caught:
        Contract.of({"power_budget_watts": 3})
    assert caught.value.code is ReasonCode.UNSUPPORTED_CLAUSE


UNCHECKABLE, CONFLICT = ReasonCode.UNCHECKABLE_CLAUSE, ReasonCode.CONTRACT_CONFLICT
BUDGET = {"memory_budget_bytes": 1 << 20}
BINDING = {"latency_goal_seconds": 1.0, "latency_binding": True}


@pytest.mark.parametrize(
    ("fallbacks", "beside", "code", "text"),
    [
        (("iree",), {"max_error": None}, UNCHECKABLE, "`fallbacks`"),
        ((), {"latency_binding": True}, UNCHECKABLE, "`latency_binding`"),
        (("none", "iree"), {}, CONFLICT, "none"),
        (("modes", "iree"), {"determinism": "strict"}, CONFLICT, "other bits"),
        (("numpy",), BUDGET, CONFLICT, "memory_budget_bytes"),
        (("modes", "iree"), BUDGET, CONFLICT, "loaded beside"),
        (("iree",), BINDING, CONFLICT, "not measured"),
        (("numpy",), BINDING, CONFLICT, "latency_binding"),
    ],
)
def test_what_cannot_be_checked_or_hold_together_is_refused_when_made(
    fallbacks, beside, code, text
):
    with pytest.raises(PycError, match=text) as caught:
        Contract(**{"max_error": 0, "fallbacks": fallbacks, **beside})
    assert caught.value.code is code


def test_strict_takes_fallbacks_of_equal_bits():
    modes = Contract(determinism="strict", max_error="rounding", fallbacks=("modes",))
    assert modes.fallbacks == ("modes",)
    assert Contract(determinism="strict", fallbacks=("none",)).fallbacks == ("none",)


def test_a_report_round_trips_and_leaves_out_what_was_measured():
    clauses = (
        ClauseReport(
            "max_error", 1e-3, Status.SAMPLED, (Note("two samples"),), "", 2, 3, {"worst": 0.5}
        ),
        ClauseReport("allowed_targets", ("cpu",), Status.PROVEN),
        ClauseReport("latency_goal_seconds", 0.1, Status.BROKEN, code="LATENCY_MISSED"),
    )
    report = ContractReport(clauses)
    assert from_data(ContractReport, json.loads(json.dumps(to_data(report)))) == report
    assert report.unmeasured()["max_error"].measured == {} and not report.holds
    assert str(report).splitlines() == [
        "max_error = 0.001: sampled 2 of 3; two samples; worst 0.5",
        "allowed_targets = cpu: proven",
        "latency_goal_seconds = 0.1: broken [LATENCY_MISSED]",
    ]


@pytest.mark.parametrize("field, value", [("of", 1e999), ("measured", {"worst": 10**400})])
@pytest.mark.full
def test_numbers_beyond_all_bounds_are_no_report(field, value):
    data = to_data(ClauseReport("max_error", 1e-3, Status.SAMPLED))
    with pytest.raises(ValueError, match=r"expected (int|float)"):
        from_data(ClauseReport, {**data, field: value})
