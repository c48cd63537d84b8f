"""One error of each kind, with all of its fields."""

from pyc_mlir.artifact.import_report import GraphBreak, ImportReport, UnsupportedModel
from pyc_mlir.compilation.contract_check import WrongResult
from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.frontends.python.source import SourcePoint, Untraceable
from pyc_mlir.iree.diagnostics import CompileError, IreeDiagnostic
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget, SmallestProgram
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.driver.pipeline_text import PipelineError
from pyc_mlir.pipelines.memory.planner.planner import BudgetRefused
from pyc_mlir.tools.cli.common import usage_error

POINT = SourcePoint("model.py", 3, 7)
BREAK = GraphBreak("model.py:3", "Foo", ReasonCode.UNSUPPORTED_OP, "no rule", 1)
DECISION = Decision(Site("pyc-fuse", "add.1"), "keep", (Alternative("keep"),), "heuristic")
ERRORS: list[PycError] = [
    PycError(ReasonCode.BAD_ARGUMENT, "x: expected 1, got 2"),
    VerificationError("pyc.add: expected 2 operands, got 1"),
    Untraceable("model.py:3:7: sort", "np.sort", POINT, "sort"),
    UnsupportedModel(ImportReport(1, name="model.py", breaks=(BREAK,))),
    BudgetNotKept(
        ByteBudget(10, 4), SmallestProgram(1, 2, 3, 1.0, 2.0), proven=True, optional=True
    ),
    CompileError(ReasonCode.PASS_FAILED, "passes", [IreeDiagnostic("error", "no", "a.mlir:1:1")]),
    PipelineError("a,b", 2, "unknown pass"),
    usage_error("pyc-run", "expected a program"),
    WrongResult("program: expected 1, got 2", [DECISION]),
]


def budget_refused() -> PycError:
    """Made without a plan: its fields are numbers."""
    error = BudgetRefused.__new__(BudgetRefused, "memory plan [BUDGET_NOT_FOUND]")
    PycError.__init__(error, ReasonCode.BUDGET_NOT_FOUND, "memory plan")
    error.smallest, error.seconds, error.bound = 3, 1.0, 2
    return error


ERRORS.append(budget_refused())
