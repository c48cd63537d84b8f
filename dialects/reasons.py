"""The reason codes: why something was refused, replaced, missed or failed, and what to do about it.

One table. docs/errors.md is generated from it, `error.code`, decisions, events and reports name its
rows, and test/py/dialects/test_reasons.py provokes each. A code that nothing gives is deleted.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class ReasonRow:
    """A row: what the code says, what leads to it, what a user can do, and a case of it."""

    meaning: str
    cause: str
    remedy: str
    example: str


class ReasonCode(Enum):
    """Stable names for refusals, fallbacks, misses and errors. Codes are added, never renamed."""

    def __repr__(self) -> str:
        return f"ReasonCode.{self.name}"

    BAD_ARGUMENT = ReasonRow(
        "a value given to the API or a command line is not acceptable",
        "a misspelt name, a value out of range, flags that exclude each other",
        "pass what the message says was expected",
        '`Device("abacus")`',
    )
    ARGUMENT_COUNT = ReasonRow(
        "a program was called with the wrong number of arrays",
        "an input, or an array of `out`, is missing or too many",
        "pass one array per input",
        "`program(a)` where the program has two inputs",
    )
    ARGUMENT_DTYPE = ReasonRow(
        "an array's element type differs from the program's input",
        "numpy makes f64 arrays unless told otherwise",
        "convert with `.astype`",
        "`program(np.ones((2, 3)))` for an f32 input",
    )
    ARGUMENT_SHAPE = ReasonRow(
        "an array's rank or a dimension differs from the program's input",
        "the program was compiled for other sizes, or a batch dimension is missing",
        "reshape the array, or compile with a dynamic dimension",
        "`program(x[0])` for an input of rank 2",
    )
    DIMENSION_MISMATCH = ReasonRow(
        "two dynamic dimensions that must agree do not",
        "arrays of different batches, or an index into an empty axis",
        "pass arrays whose named dimensions agree",
        "`program(x, y[:1])` where both are declared `n` long",
    )
    DIMENSION_OUT_OF_RANGE = ReasonRow(
        "a dynamic dimension is outside of the range that it was declared with",
        "a larger batch than `dims` or `--dim` said",
        "pass arrays of sizes within the range, or compile with a wider one",
        'five rows where `dims={"n": (1, 4)}`',
    )
    INDEX_OUT_OF_RANGE = ReasonRow(
        "an argument holds indices that the axis they choose from does not have",
        "token ids of another vocabulary, or padding by -1",
        "pass indices of the model's range, or compile with `guard_indices=False`, which clamps",
        "token id 30600 for an ONNX model with 30522 embeddings",
    )
    FILE_ACCESS = ReasonRow(
        "a file or folder could not be read or written",
        "it does not exist, permissions forbid it, or the disk is full",
        "do what the message says: check the path, give permission, free space",
        "`pyc-compile model.onnx -o missing/model.vmfb`",
    )
    INVALID_IR = ReasonRow(
        "a module does not parse or verify",
        "a mistake in `.mlir` text, or operands whose types and shapes do not fit an operation",
        "mend the line that the error names",
        "`pyc.matmul` of 2x3 and 2x3",
    )
    INVALID_PIPELINE = ReasonRow(
        "a pass pipeline names an unknown pass, option or anchor",
        "a misspelt name, or a bracket that is not closed",
        "see `pyc-opt --list-passes`",
        "`pyc-opt --pass-pipeline='builtin.module(pyc-fuze)'`",
    )
    PASS_FAILED = ReasonRow(
        "a pass could not finish",
        "a form that the pass does not support, such as dynamic sizes in `pyc-plan-memory`",
        "see the diagnostic; rerun its reproducer",
        "`pyc-opt --pyc-plan-memory` on a function of `tensor<?xf32>`",
    )
    NATIVE_CRASH = ReasonRow(
        "native code ended the process",
        "a fault of MLIR or IREE; `pyc-opt` and `pyc-compile` run them in a child",
        "report the reproducer that the message names",
        "a segmentation fault below `pyc-opt`",
    )
    OUT_OF_MEMORY = ReasonRow(
        "a tool, a compile, a load or a call had less memory than it needs",
        "a limit (`ulimit -v`), a full machine, or a model with much to compute while it is read",
        "raise the limit, free memory, or take a smaller model",
        "`pyc-compile` of a large model under `ulimit -v 600000`",
    )
    INTERNAL_ERROR = ReasonRow(
        "a fault of PyC ended a tool",
        "a case that PyC does not know of itself",
        "report the traceback above the message, with the command line",
        "a `TypeError` in a pass of PyC below `pyc-compile`",
    )
    UNSUPPORTED_OP = ReasonRow(
        "a model uses an operation that PyC does not know",
        "the exporter chose an operation that PyC has no rule for",
        "replace the operation, or ask for it in an issue of PyC's repository (CONTRIBUTING.md)",
        "an ONNX model with an operator of a domain of its own",
    )
    UNSUPPORTED_ATTRIBUTE = ReasonRow(
        "a model uses a known operation in a form that PyC does not know",
        "an option, rank or operand that is known only when the model runs",
        "export the model in the form that the message expects; if it names none, replace the "
        "operation",
        "ONNX `Resize` whose sizes are an input",
    )
    UNSUPPORTED_DTYPE = ReasonRow(
        "the target or the operation lacks an element type",
        "complex or unsigned arrays; f64 on a GPU without it",
        "cast the model to a type that the message names, or choose another target",
        'an f64 program for `target="vulkan"`',
    )
    UNSUPPORTED_CLAUSE = ReasonRow(
        "a contract asks for a promise that PyC cannot make yet",
        "a clause of another version, or one that the target cannot keep",
        "drop the clause",
        '`Contract(determinism="strict")` for CUDA',
    )
    UNCHECKABLE_CLAUSE = ReasonRow(
        "a contract asks for a promise that nothing could check",
        "a clause without the one that it refers to, or without a device to try it on",
        "add what the message names, or drop the clause",
        "`Contract(latency_binding=True)` without a goal",
    )
    CONTRACT_CONFLICT = ReasonRow(
        "two clauses of a contract, or a clause and an option, cannot hold together",
        "a fallback that breaks another promise",
        "drop one of the two",
        '`Contract(determinism="strict", max_error="rounding", fallbacks=("iree",))`',
    )
    NO_ORACLE = ReasonRow(
        "there is no reference to compare a program with, or rounding leaves nothing to compare",
        "a foreign program that vmvx cannot run, or one without sizes to try",
        "drop the clause `max_error`, or do what the message says",
        "`program.compare_every(10)` on a program that was loaded from a file",
    )
    LATENCY_MISSED = ReasonRow(
        "the median call takes longer than the contract's goal",
        "the goal is too low for this machine, or the machine is busy",
        "raise the goal, or let it be advisory",
        "`Contract(latency_goal_seconds=1e-9, latency_binding=True)`",
    )
    NOT_DETERMINISTIC = ReasonRow(
        "a program gave different bits for equal inputs under a strict contract",
        "a fault of PyC or IREE: sums whose order depends on threads",
        "report the program",
        "two runs of a strict program with one and two threads that differ",
    )
    FALLBACK_REFUSED = ReasonRow(
        "a fallback was needed, and the contract refuses it or names none that is left",
        '`fallbacks=("none",)` and code generation failed under the preferred setting',
        "name the fallback in the contract, or compile with what the message names",
        '`CODEGEN_FALLBACK` under `Contract(fallbacks=("none",))`',
    )
    FALLBACK_TAKEN = ReasonRow(
        "a program failed its comparison, and a fallback of its contract serves in its place",
        "a miscompile that a sample or a call found",
        "nothing; report the program, `Program.stats().contract` says what failed",
        '`Contract(max_error="rounding", fallbacks=("iree",))` and a wrong kernel',
    )
    COMPILE_DEGRADED = ReasonRow(
        "a compile reached its limit of seconds, and a program that compiles faster stands in",
        "the limit is short for what was asked, or the machine was busy",
        "raise `max_compile_seconds`; the decision `compile-stage` says what was left out",
        "`Contract(max_compile_seconds=5)` for six seconds of work",
    )
    COMPILE_TIMEOUT = ReasonRow(
        "a compile took longer than the contract's limit of seconds: no program was there, or late",
        "the limit is short for every stage, or the contract allows no cheaper program",
        "raise `max_compile_seconds`, or let a cheaper program stand in",
        "`Contract(max_compile_seconds=0.001)`",
    )
    UNKNOWN_TARGET = ReasonRow(
        "no such target",
        "a misspelt name",
        "choose one of those that the message lists",
        '`compile(model, target="tpu")`',
    )
    TARGET_COMPILE_FAILED = ReasonRow(
        "IREE could not compile the module for the target",
        "an operation that IREE's code generator does not handle for it",
        "see the diagnostic of the named op",
        "a dispatch that needs more shared memory than the GPU has",
    )
    CODEGEN_FALLBACK = ReasonRow(
        "IREE's code generation failed under one setting and succeeded under another",
        "a group of fused operations that IREE cannot generate code for",
        "none needed; the decision log names both",
        "aggressive fusion of a stack that is too large",
    )
    PLANNING_FAILED = ReasonRow(
        "PyC's memory planner gave up on a program, and IREE's own plan serves",
        "a form of IREE's stream IR that the planner does not read",
        "none needed; report the program, whose decision `plan-memory` says why",
        "an error inside the planner; the program is compiled and correct",
    )
    BUDGET_RETRY = ReasonRow(
        "the preferred way to compile keeps no memory budget, and another one was taken",
        "packed weights or large parts need more than the budget allows",
        "none needed; a larger budget lets the program be faster",
        "the decision `budget` under a tight `memory_budget_bytes`",
    )
    FORKED_CHILD = ReasonRow(
        "a forked child compiles, and its parent had compiled before the fork",
        "the compiler's threads are the parent's; the child would wait for them for ever",
        "start children with `spawn`, or set `max_compile_seconds`, which compiles in a worker",
        "`multiprocessing.Pool` under the start method `fork`, after a compile",
    )
    DEVICE_UNAVAILABLE = ReasonRow(
        "the device that a program needs is not on this machine",
        "no driver, no such GPU, or a CPU without the features of the target",
        "run `pyc-doctor`",
        '`Device("cuda")` on a machine without a GPU',
    )
    CANNOT_PROFILE = ReasonRow(
        "the times of a program's dispatches cannot be measured as it runs now",
        "a GPU, another mode's plan on `local-sync`, or a fallback that answers",
        "run it on `local-task` or compile it for a CPU, as the message says",
        "`program.profile(x)` of a program for CUDA",
    )
    RUNTIME_DIFFERS = ReasonRow(
        "a program runs under another release of IREE's runtime than it was compiled for",
        "the runtime was updated, or the program was compiled on a machine with another one",
        "compile it again here, or install that release; its answers are compared anew",
        "`pyc-run` of a program that was compiled with IREE 3.13 under runtime 3.12",
    )
    BAD_ARTIFACT = ReasonRow(
        "a file is not a program that PyC can load",
        "another kind of file, a damaged one, or one of another version",
        "compile it again",
        '`pyc_mlir.load("model.onnx")`',
    )
    BAD_MODEL = ReasonRow(
        "a model file is malformed",
        "another kind of file, a download that was cut off, an exporter's fault",
        "export the model again",
        "`pyc-compile model.vmfb`",
    )
    RUNTIME_FAILED = ReasonRow(
        "the device refused or failed a call",
        "out of memory, or a check inside the program",
        "see the runtime's message",
        "a call that needs more memory than the device has",
    )
    WRONG_RESULT = ReasonRow(
        "a program computes something else than its reference",
        "a miscompile that a comparison found",
        "report the program; no answer or figure of it was used",
        '`Contract(max_error="rounding")` and a wrong kernel',
    )
    FAULT_DETECTED = ReasonRow(
        "a product of matrices gives other sums than its operands have, each time it is computed",
        "weights damaged in memory, or a core that computes wrongly",
        "load the program again; if it stays, take the machine out of service",
        "a flipped bit in the weights under `Contract(detect_faults=True)`",
    )
    FAULT_REPAIRED = ReasonRow(
        "a part of a product was wrong once and right when it was computed again",
        "a passing fault of a core or of its caches",
        "none for this call; see whether a machine has many of them",
        "a flipped bit in a register under `Contract(detect_faults=True)`",
    )
    TRACE_MISMATCH = ReasonRow(
        "a function, run by numpy, gives other answers than its trace",
        "a fault of PyC's front end, or code that does another thing while it is traced",
        "report it; a module that `trace` gives is compared from there on",
        "`x + 1 if isinstance(x, np.ndarray) else x` under `max_error`",
    )
    UNTRACEABLE = ReasonRow(
        "a Python function does something that tracing cannot record",
        "`if` on an array's values, changing an array in place, keeping it for later",
        "use array operations in place of Python control flow on values",
        "`if x.sum() > 0:` in a traced function",
    )
    STALE_CAPTURES = ReasonRow(
        "an audited function traces to another program than the one that was compiled",
        "it reads what calls do not compare: large arrays, files, the environment, random numbers",
        "pass what changes as an argument, or call `cache_clear()` after a change",
        "`jit(f, audit=1)` where `f` reads `os.environ`, which has changed",
    )
    RECIPE_MISMATCH = ReasonRow(
        "a recipe names a choice that is not legal here",
        "it is of another program, target or version",
        "make the recipe again from a log of the same program",
        "`pyc-compile b.onnx --recipe a.jsonl`",
    )
    RECIPE_PARTIAL = ReasonRow(
        "a recipe answers a part of the sites only, the policy answers the others",
        "it was made for another graph, target or options; a model trained again has all its sites",
        "see in the log which sites were left to the policy; tune them, or accept its choices",
        "`pyc-compile wider.onnx --recipe model.vmfb`",
    )
    NO_EVIDENCE = ReasonRow(
        "nothing measured answers a choice of a compile that was given or requires measurements",
        "wisdom of another machine, toolchain or model, or a model that was never tuned",
        "tune the model on this machine, or compile without `require_evidence`",
        '`compile(model, policy="fastest", require_evidence=True)` without wisdom',
    )
    BAD_WISDOM = ReasonRow(
        "a wisdom file is damaged, or of a version that this PyC cannot read",
        "a file that was edited or cut off, or one of a newer PyC",
        "export it again with `pyc-tune export`",
        "a wisdom file in which a number was changed",
    )
    WISDOM_FOREIGN = ReasonRow(
        "wisdom has rows for a choice, measured on other hardware or by another toolchain",
        "the file was exported elsewhere, or PyC was updated since",
        "measure again here with `pyc-tune`; such rows are candidates, no answers",
        "a wisdom file of another machine",
    )
    NO_KERNEL = ReasonRow(
        "no kernel of PyC's covers operations that take much of the predicted time of a call",
        "a type, size or operation that no kernel family has, or a CPU without AVX2",
        "none needed: IREE's code computes them; `pyc-explain` lists them",
        "a large matrix product in f64",
    )
    LOOP_UNROLLED = ReasonRow(
        "loops of a program were written out as many operations, step by step",
        "PyC has no loop: a `scan` of many steps becomes as many copies of its body",
        "compile one step and call it in a loop, or take fewer steps; `max_compile_seconds` bounds "
        "the compile time",
        "`jax.lax.scan` over 512 steps",
    )
    DATABASE_UNUSABLE = ReasonRow(
        "a benchmark database cannot be used",
        "a missing package, a network file system, a server that is away, a newer schema",
        "do what the message says",
        "`pyc-tune ls --db mysql://host/name`",
    )
    EVIDENCE_CONFLICT = ReasonRow(
        "a row contradicts one that a benchmark database holds",
        "another content under a known id, a row that refers to none, a change of a fact",
        "add new rows under new ids",
        "a trace with other samples for a process that was recorded",
    )
    NOT_PROMOTED = ReasonRow(
        "a recipe does not meet the conditions of the state that it was to have",
        "too few sessions, processes or machines, a gain that is unclear or too small, faults",
        "measure what the message says is needed; `pyc-tune why ID` lists every condition",
        "`pyc-tune promote ID --lane stable` after one session",
    )
    LEASE_LOST = ReasonRow(
        "a trial is no longer held by the worker that reports on it",
        "the lease expired, and another worker has the trial, or it is done",
        "drop the result; renew leases in time",
        "a worker that was suspended for an hour",
    )
    MACHINE_BUSY = ReasonRow(
        "this machine is no place to measure now",
        "another measurement runs, or other processes, the hypervisor or heat slow the machine",
        "wait for what the message names",
        "`pyc-tune profile` beside another one",
    )
    REPLAY_MISMATCH = ReasonRow(
        "a replay cannot make, or did not make, the program that its log was written for",
        "the program, target, versions or evidence are others than those of the log",
        "compile the same program under what the message names, or make the log again",
        "`pyc-compile b.onnx --replay a.jsonl`",
    )
    INVALID_CHOICE = ReasonRow(
        "a policy answered with something that was not offered",
        "a fault of a policy of one's own",
        "mend the policy",
        "`prefer` that returns a name of its own",
    )
    ENVIRONMENT_MISMATCH = ReasonRow(
        "two measurements come from different machines or software",
        "a result of another machine or version was given to compare with",
        "measure both in one environment",
        "`pyc-bench` results of two machines in one comparison",
    )
    BUDGET_IMPOSSIBLE = ReasonRow(
        "a memory budget is below what every plan of the program needs",
        "inputs, results, constants or one operation alone need more",
        "raise the budget to what the message names, or make the program smaller",
        "`Contract(memory_budget_bytes=64)`",
    )
    BUDGET_NOT_FOUND = ReasonRow(
        "no memory plan within the budget was found, though one may exist",
        "the search ended, or a dimension without a range has no largest size",
        "raise the budget to what the message names, or allow more work or more seconds",
        "a budget for a dynamic batch without `dims`",
    )
    NO_ARENA_ENTRY = ReasonRow(
        "a program has no entry that takes its memory from the caller",
        "its plan does not know all sizes before a call, or IREE planned it",
        "call it without `out`; its decision `arena-entry` says why there is none",
        "`program(x, out=y)` where the result's size depends on values",
    )
    ARENA_TOO_SMALL = ReasonRow(
        "the scratch arena is smaller than a call needs; the call was not launched",
        "a size that the program computes differs from what the plan foresaw",
        "let the program own its arenas",
        "an arena of another program",
    )
    MODE_SWITCHED = ReasonRow(
        "calls take another plan of the program from now on: asked for, or by a rule on memory",
        "`use_mode`, or free memory below the bound of `switch_below`",
        "nothing; `Program.stats().switches` says why",
        '`program.use_mode("memory_first")`',
    )
    NO_SHAPE_PLANS = ReasonRow(
        "a plan for certain shapes that was asked for is not made; the general plan serves them",
        "nothing predicted to be gained, no ranges, weights stored twice, or a memory budget",
        "the decision `shape-plans` says why; declare ranges, or name the sizes in `plans`",
        "`compile(model, plans=4)` of a program that is as fast for all shapes",
    )
    ARM_CHANGED = ReasonRow(
        "a selector lets another plan of the program serve, or takes none of an arm any more",
        "pairs of timed calls, drift of the one that served, or a failure",
        "`Program.stats().routes` and `Selector.events()` have the numbers; `freeze` ends it",
        "`program.adapt(Selector())`",
    )
    TARGET_MISSED = ReasonRow(
        "a program in service misses a target of its owner over a window of calls",
        "load, a slower build, or faults of the device",
        "`Service.health()` and the service's log have the figures and the action that was taken",
        "`Service(program, targets=Targets(p50_seconds=1e-9))`",
    )
    BUILD_SWAPPED = ReasonRow(
        "another build of a program answers from now on",
        "`Service.swap`",
        "nothing; the service's log says which build it replaced",
        '`service.swap("newer.vmfb")`',
    )
    CALL_HANGS = ReasonRow(
        "a call in service runs longer than its owner allows",
        "a device that does not answer, or a limit below what calls need",
        "see what the thread waits for; raise `hang_seconds` if such calls are right",
        "`Service(program, hang_seconds=0.01)` and a call of a second",
    )
    SERVICE_REFUSING = ReasonRow(
        "a service refuses calls, since no build that it trusts is left or its targets say so",
        "a wrong answer without a fallback, or targets with the action `refuse`",
        "swap in another build, or wait until the service tries again",
        "a compared call that differs under `fallbacks=()`",
    )
    SERVER_BUSY = ReasonRow(
        "a server has as many requests waiting as it allows, or it ends",
        "more requests than the model answers",
        "send the request again later, add workers, or raise `--queue`",
        "`pyc-serve --queue 1` and three requests at once",
    )
    DEADLINE_PASSED = ReasonRow(
        "a request was not there, or not answered, within its time",
        "a queue that is long for the timeout, or a client that sends slowly",
        "allow more time, or send fewer requests at once",
        "the parameter `timeout` of 1 microsecond behind a long call",
    )
    REQUEST_TOO_LARGE = ReasonRow(
        "a request has more bytes than the server takes",
        "large tensors, or a mistake in a size",
        "send less at once, or raise `--max-request-bytes`",
        "`pyc-serve --max-request-bytes 1KiB` and a request of 2 KiB",
    )
    UNKNOWN_MODEL = ReasonRow(
        "a request names a model or a version that the server does not have",
        "a misspelt name, or a version that another build replaced",
        "`POST /v2/repository/index` lists the models; leave the version out",
        "`/v2/models/none/infer`",
    )
    UNKNOWN_ADDRESS = ReasonRow(
        "a request goes to an address, or uses a method, that the server does not have",
        "a misspelt path, GET in place of POST, or an extension of Triton that PyC does not have",
        "docs/service.md lists the addresses",
        "`GET /v2/nowhere`",
    )
    UNAUTHORIZED = ReasonRow(
        "a request lacks the server's token, or asks a server without one by a foreign name",
        "a client without the token, or with an old one; a web page that reaches into this machine",
        "send it as `Authorization: Bearer TOKEN`; ask a server without a token as localhost",
        "a request without a token to `pyc-serve --token-file`",
    )
    OUTPUT_OVERLAP = ReasonRow(
        "memory given for an output is also an input's or another output's",
        "one array, or views of one, in two places of a call",
        "give memory of its own for each output",
        "`program(x, out=x)`",
    )
    DONATION_UNSAFE = ReasonRow(
        "an input's memory cannot be proven free for an output",
        "no result of as many bytes, or one that is written while the input is still read",
        "call without `donate`",
        "`program(x, donate=[0])` for a softmax",
    )
    DONATED_ARRAY = ReasonRow(
        "an array is used whose memory was donated to a result",
        "it was named in `donate` of an earlier call",
        "use that result, or call without `donate`",
        "`program(x, donate=[0])`, then `x.numpy()`",
    )
    CACHE_MISS = ReasonRow(
        "the compile cache holds no program for the key, so the program was compiled",
        "a first compile, or a program, option or version that changed",
        "nothing; `pyc-cache why` names the parts of the key that differ",
        "the first `compile(model, cache=True)`",
    )
    CACHE_DAMAGED = ReasonRow(
        "an entry of the compile cache failed its checksums: it was dropped, and compiled again",
        "a disk's fault, or somebody who wrote into the folder",
        "nothing for one; for many, check the disk, then `pyc-cache verify`",
        "a flipped byte in an entry",
    )
    CACHE_FOLDER = ReasonRow(
        "the folder of the compile cache could not be read or written; the compile went on",
        "permissions, a full disk, a file of that name",
        "free space there, make it writable, or name another folder",
        '`compile(model, cache="/proc/none")`',
    )
    CACHE_BYPASSED = ReasonRow(
        "a program went past the compile cache, since not all that made it can be named in a key",
        "a policy with state, a flag that names a file, PyC's source that changed meanwhile",
        "give what the message names a version, or leave it out",
        "`compile(model, cache=True, policy=Mine())` where `Mine` has hidden state",
    )
    MISSING_DEPENDENCY = ReasonRow(
        "an optional package is not installed",
        "PyC was installed without the extra, as for machines that only run programs",
        "install the named extra",
        "an ONNX model without the package onnx",
    )
