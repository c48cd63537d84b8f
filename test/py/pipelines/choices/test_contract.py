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


@pytest.mark.parametrize(
    "clause",
    [
        {"memory_budget_bytes": 0},
        {"memory_budget_bytes": True},
        {"memory_budget_bytes": 1.5},
        {"memory_budget_bytes": float("inf")},
        {"memory_budget_bytes": 2**63},
        {"max_compile_seconds": -1.0},
        {"max_compile_seconds": float("inf")},
        {"max_compile_seconds": 1e300},
        {"max_compile_seconds": 10**400},
        {"max_concurrency": None},
        {"max_concurrency": 2**31},
        {"latency_binding": "false"},
        {"latency_binding": 1},
        {"latency_goal_seconds": float("nan")},
        {"allowed_targets": "cpu"},
        {"allowed_targets": (1,)},
        {"allowed_targets": ("cpu", "tpu")},
        {"max_concurrency": 1.5},
        {"max_error": -1e-9},
        {"max_error": 1.0},
        {"max_error": float("nan")},
        {"max_error": "little"},
        {"latency_goal_seconds": "5 parsecs"},
        {"determinism": "loose"},
        {"fallbacks": ("prayer",)},
        {"fallbacks": ("none", "none")},
    ],
)
def test_impossible_values(clause):
    with pytest.raises(PycError, match="expected") as caught:
        Contract(**clause)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_round_trip():
    for contract in (Contract(), Contract(**GIVEN)):
        assert Contract.of(json.loads(json.dumps(to_data(contract)))) == contract


def test_unknown_clause_is_refused():
    with pytest.raises(PycError, match="`power_budget_watts`") as caught:
        Contract.of({"power_budget_watts": 3})
    assert caught.value.code is ReasonCode.UNSUPPORTED_CLAUSE


@pytest.mark.parametrize(
    ("clauses", "code", "text"),
    [
        ({"fallbacks": ("iree",)}, ReasonCode.UNCHECKABLE_CLAUSE, "`fallbacks`"),
        ({"latency_binding": True}, ReasonCode.UNCHECKABLE_CLAUSE, "`latency_binding`"),
        ({"max_error": 0, "fallbacks": ("none", "iree")}, ReasonCode.CONTRACT_CONFLICT, "none"),
        (
            {"max_error": 0, "fallbacks": ("modes", "iree"), "determinism": "strict"},
            ReasonCode.CONTRACT_CONFLICT,
            "other bits",
        ),
        (
            {"max_error": 0, "fallbacks": ("numpy",), "memory_budget_bytes": 1 << 20},
            ReasonCode.CONTRACT_CONFLICT,
            "memory_budget_bytes",
        ),
        (
            {"max_error": 0, "fallbacks": ("modes", "iree"), "memory_budget_bytes": 1 << 20},
            ReasonCode.CONTRACT_CONFLICT,
            "loaded beside",
        ),
        (
            {
                "max_error": 0,
                "fallbacks": ("iree",),
                "latency_goal_seconds": 1.0,
                "latency_binding": True,
            },
            ReasonCode.CONTRACT_CONFLICT,
            "not measured",
        ),
        (
            {
                "max_error": 0,
                "fallbacks": ("numpy",),
                "latency_goal_seconds": 1.0,
                "latency_binding": True,
            },
            ReasonCode.CONTRACT_CONFLICT,
            "latency_binding",
        ),
    ],
)
def test_what_cannot_be_checked_or_hold_together_is_refused_when_made(clauses, code, text):
    with pytest.raises(PycError, match=text) as caught:
        Contract(**clauses)
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
