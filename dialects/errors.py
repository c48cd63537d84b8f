"""What can go wrong, and under which name: the reason codes and the errors that carry them.

Every error that a user can cause is a `PycError`. Its text reads
``where: what was expected, what came``, then the remedy; its `code` is a row of the
`ReasonCode` table, which docs/errors.md is generated from.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Reason:
    """One row of the table: what a code means and what a user can do about it."""

    meaning: str
    remedy: str


class ReasonCode(Enum):
    """Stable names for refusals, fallbacks and errors. Codes are added, never renamed."""

    BAD_ARGUMENT = Reason(
        "a value given to the API or a command line is not acceptable",
        "pass what the message says was expected",
    )
    ARGUMENT_COUNT = Reason(
        "a program was called with the wrong number of arrays", "pass one array per input"
    )
    ARGUMENT_DTYPE = Reason(
        "an array's element type differs from the program's input", "convert with `.astype`"
    )
    ARGUMENT_SHAPE = Reason(
        "an array's rank or a dimension differs from the program's input",
        "reshape the array, or compile with a dynamic dimension",
    )
    DIMENSION_MISMATCH = Reason(
        "two dynamic dimensions that must agree do not", "pass arrays whose named dimensions agree"
    )
    DIMENSION_OUT_OF_RANGE = Reason(
        "a dynamic dimension is outside of the range that it was declared with",
        "pass arrays of sizes within the range, or compile with a wider one",
    )
    INVALID_IR = Reason("a module does not parse or verify", "mend the line that the error names")
    INVALID_PIPELINE = Reason(
        "a pass pipeline names an unknown pass, option or anchor", "see `pyc-opt --list-passes`"
    )
    PASS_FAILED = Reason("a pass could not finish", "see the diagnostic; rerun its reproducer")
    NATIVE_CRASH = Reason(
        "native code ended the process", "report the reproducer that the message names"
    )
    UNSUPPORTED_OP = Reason(
        "a model uses an operation that PyC does not know",
        "replace the operation, or file an issue",
    )
    UNSUPPORTED_ATTRIBUTE = Reason(
        "a model uses a known operation in a form that PyC does not know",
        "export the model with the form that the message names",
    )
    UNSUPPORTED_DTYPE = Reason(
        "the target or the operation lacks an element type",
        "cast the model to a type that the message names, or choose another target",
    )
    UNSUPPORTED_CLAUSE = Reason(
        "a contract asks for a promise that PyC cannot make yet", "drop the clause"
    )
    UNCHECKABLE_CLAUSE = Reason(
        "a contract asks for a promise that nothing could check",
        "add what the message names, or drop the clause",
    )
    CONTRACT_CONFLICT = Reason(
        "two clauses of a contract, or a clause and an option, cannot hold together",
        "drop one of the two",
    )
    NO_ORACLE = Reason(
        "there is no reference to compare a program with, or rounding leaves nothing to compare",
        "drop the clause `max_error`, or do what the message says",
    )
    LATENCY_MISSED = Reason(
        "the median call takes longer than the contract's goal",
        "raise the goal, or let it be advisory",
    )
    NOT_DETERMINISTIC = Reason(
        "a program gave different bits for equal inputs under a strict contract",
        "report the program",
    )
    FALLBACK_REFUSED = Reason(
        "a fallback was needed, and the contract refuses it or names none that is left",
        "name the fallback in the contract, or compile with what the message names",
    )
    FALLBACK_TAKEN = Reason(
        "a program failed its comparison, and a fallback of its contract serves in its place",
        "nothing; report the program, `Program.stats().contract` says what failed",
    )
    UNKNOWN_TARGET = Reason("no such target", "choose one of those that the message lists")
    TARGET_COMPILE_FAILED = Reason(
        "IREE could not compile the module for the target", "see the diagnostic of the named op"
    )
    CODEGEN_FALLBACK = Reason(
        "IREE's code generation failed under one setting and succeeded under another",
        "none needed; the decision log names both",
    )
    DEVICE_UNAVAILABLE = Reason(
        "the device that a program needs is not on this machine", "run `pyc-doctor`"
    )
    BAD_ARTIFACT = Reason("a file is not a program that PyC can load", "compile it again")
    BAD_MODEL = Reason("a model file is malformed", "export the model again")
    RUNTIME_FAILED = Reason("the device refused or failed a call", "see the runtime's message")
    WRONG_RESULT = Reason(
        "a program computes something else than its reference",
        "report the program; no answer or figure of it was used",
    )
    UNTRACEABLE = Reason(
        "a Python function does something that tracing cannot record",
        "use array operations in place of Python control flow on values",
    )
    RECIPE_MISMATCH = Reason(
        "a recipe names a choice that is not legal here",
        "make the recipe again from a log of the same program",
    )
    REPLAY_MISMATCH = Reason(
        "a replay cannot make, or did not make, the program that its log was written for",
        "compile the same program under what the message names, or make the log again",
    )
    INVALID_CHOICE = Reason(
        "a policy answered with something that was not offered", "mend the policy"
    )
    ENVIRONMENT_MISMATCH = Reason(
        "two measurements come from different machines or software",
        "measure both in one environment",
    )
    BUDGET_IMPOSSIBLE = Reason(
        "a memory budget is below what every plan of the program needs",
        "raise the budget to what the message names, or make the program smaller",
    )
    BUDGET_NOT_FOUND = Reason(
        "no memory plan within the budget was found, though one may exist",
        "raise the budget to what the message names, or allow more work or more seconds",
    )
    NO_ARENA_ENTRY = Reason(
        "a program has no entry that takes its memory from the caller",
        "call it without `out`; its decision `arena-entry` says why there is none",
    )
    ARENA_TOO_SMALL = Reason(
        "the scratch arena is smaller than a call needs; the call was not launched",
        "let the program own its arenas",
    )
    MODE_SWITCHED = Reason(
        "calls take another plan of the program from now on: asked for, or by a rule on memory",
        "nothing; `Program.stats().switches` says why",
    )
    OUTPUT_OVERLAP = Reason(
        "memory given for an output is also an input's or another output's",
        "give memory of its own for each output",
    )
    DONATION_UNSAFE = Reason(
        "an input's memory cannot be proven free for an output", "call without `donate`"
    )
    CACHE_MISS = Reason(
        "the compile cache holds no program for the key, so the program was compiled",
        "nothing; `pyc-cache why` names the parts of the key that differ",
    )
    CACHE_DAMAGED = Reason(
        "an entry of the compile cache failed its checksums: it was dropped, and compiled again",
        "nothing for one; for many, check the disk, then `pyc-cache verify`",
    )
    CACHE_FOLDER = Reason(
        "the folder of the compile cache could not be read or written; the compile went on",
        "free space there, make it writable, or name another folder",
    )
    CACHE_BYPASSED = Reason(
        "a program went past the compile cache, since not all that made it can be named in a key",
        "give what the message names a version, or leave it out",
    )
    MISSING_DEPENDENCY = Reason("an optional package is not installed", "install the named extra")

    @property
    def meaning(self) -> str:
        """What the code says."""
        return self.value.meaning

    @property
    def remedy(self) -> str:
        """What a user can do."""
        return self.value.remedy


class PycError(Exception):
    """A fault of the input, with its reason code. `str()` is one readable line or paragraph."""

    def __init__(self, code: ReasonCode, message: str) -> None:
        super().__init__(f"{message} [{code.name}]")
        self.code = code
        self.message = message


class VerificationError(PycError):
    """An operation whose operands, parameters or result do not fit together."""

    def __init__(self, message: str) -> None:
        super().__init__(ReasonCode.INVALID_IR, message)


def missing_compiler(error: ModuleNotFoundError) -> PycError | None:
    """The error to raise where a compiler's package is not installed; None for other modules.

    As `pip install pyc-mlir[run]` leaves a machine: programs run there, none is compiled.
    """
    if (error.name or "").partition(".")[0] not in ("torch_mlir", "iree"):
        return None
    return PycError(
        ReasonCode.MISSING_DEPENDENCY,
        f"compiling: expected the package `{error.name}`, found none; install the compiler with "
        "`pip install pyc-mlir`",
    )
