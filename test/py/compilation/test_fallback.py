"""What follows a failure of code generation: another setting, or the refusal that it ended in."""

from typing import Any

import pytest

from pyc_mlir.compilation.fallback import UNFUSED, compile_with_fallback
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.budget import Budget, BudgetNotKept, Need
from pyc_mlir.iree.session import CompileError
from pyc_mlir.pipelines.choices.choices import Choices

FAILED = ReasonCode.TARGET_COMPILE_FAILED


def no_code(said: str = "stack") -> CompileError:
    return CompileError(FAILED, f"x.py:1: expected code, got: {said}")


def over(arena: int) -> BudgetNotKept:
    return BudgetNotKept(Budget(100, 0), Need(0, 0, arena, 1.0, 1.0), proven=False)


class Request:
    """Ends as it is told, setting by setting."""

    def __init__(self, *ends: PycError | bytes) -> None:
        names: tuple[str, ...] = ("aggressive", "plain", UNFUSED)
        self.ends: dict[str, PycError | bytes] = dict(zip(names, ends, strict=True))

    def compile(self, setting: str) -> bytes:
        end = self.ends.pop(setting)
        if isinstance(end, PycError):
            raise end
        return end


def compiled(*ends: PycError | bytes) -> tuple[bytes, Choices]:
    request: Any = Request(*ends)
    choices = Choices()
    return compile_with_fallback(request, "g", choices), choices


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ((no_code("first"), no_code(), no_code()), FAILED, "first"),
        ((no_code(), over(300), no_code()), ReasonCode.BUDGET_NOT_FOUND, "needs 300"),
        ((no_code(), over(300), over(200)), ReasonCode.BUDGET_NOT_FOUND, "needs 200"),
        ((no_code(), no_code(), over(200)), ReasonCode.BUDGET_NOT_FOUND, "needs 200"),
        ((over(300), b"", b""), ReasonCode.BUDGET_NOT_FOUND, "needs 300"),
        (
            (no_code(), PycError(ReasonCode.FILE_ACCESS, "full"), b""),
            ReasonCode.FILE_ACCESS,
            "full",
        ),
    ],
)
def test_a_refusal_stays_what_it_is(ends, code, said) -> None:
    with pytest.raises(PycError) as caught:
        compiled(*ends)
    assert caught.value.code is code and said in caught.value.message


def test_a_fallback_that_keeps_the_budget_says_what_was_left() -> None:
    vmfb, choices = compiled(no_code(), over(300), b"made")
    (decision,) = choices.log
    assert vmfb == b"made" and decision.chosen == UNFUSED
    first, second = decision.evidence
    assert first == "CODEGEN_FALLBACK: aggressive: stack"
    assert second.startswith("BUDGET_RETRY: plain: memory budget: expected at most 100 bytes")
