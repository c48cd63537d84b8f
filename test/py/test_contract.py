import json
from dataclasses import fields
from typing import Any

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.contract import KEPT, Contract

GIVEN: dict[str, Any] = {
    "memory_budget_bytes": 1 << 20,
    "max_concurrency": 2,
    "max_compile_seconds": 5.0,
    "determinism": True,
    "max_error": 1e-3,
    "latency_goal_seconds": 0.01,
    "allowed_targets": ("cpu",),
    "fallbacks": ("numpy",),
}


def test_empty_contract_is_kept():
    assert Contract().given() == {}
    Contract().check(target="cuda")


@pytest.mark.parametrize("clause", [f.name for f in fields(Contract)])
def test_each_clause_is_kept_or_refused_by_name(clause):
    contract = Contract(**{clause: GIVEN[clause]})
    assert contract.given() == {clause: GIVEN[clause]}
    if clause in KEPT:
        contract.check()
        return
    with pytest.raises(PycError, match=f"`{clause}`") as caught:
        contract.check()
    assert caught.value.code is ReasonCode.UNSUPPORTED_CLAUSE


def test_allowed_targets():
    contract = Contract(allowed_targets=("cpu", "vulkan"))
    contract.check(target="cpu")
    with pytest.raises(PycError, match="expected one of cpu, vulkan, got target 'cuda'"):
        contract.check(target="cuda")


@pytest.mark.parametrize(
    "clause", [{"memory_budget_bytes": 0}, {"max_compile_seconds": -1.0}, {"max_error": -1e-9}]
)
def test_impossible_values(clause):
    with pytest.raises(PycError, match="expected") as caught:
        Contract(**clause)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_round_trip():
    for contract in (Contract(), Contract(**GIVEN)):
        assert Contract.from_json(json.loads(json.dumps(contract.to_json()))) == contract


def test_unknown_clause_is_refused():
    with pytest.raises(PycError, match="`power_budget_watts`") as caught:
        Contract.from_json({"power_budget_watts": 3})
    assert caught.value.code is ReasonCode.UNSUPPORTED_CLAUSE
