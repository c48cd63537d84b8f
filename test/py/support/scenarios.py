"""What is done to PyC on purpose, what must come of it, and which tests prove it how often.

One row a scenario. Its counts are used, not repeated: a test takes the number of its rounds from
here (`count_of`), or its cases are counted. A full run compares the counts (test/full.py), `make
lint` the names; docs/scenarios.md is made from the table (scenarios_page.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conftest import FULL

from pyc_mlir.dialects.errors import ReasonCode as Code


@dataclass(frozen=True)
class Scenario:
    """One row.

    tests: ``file::test`` below test/py/, without parameters. full: how often `make test-full` does
    it, None where it is all that there are. what: what is counted. sampled: how often `make test`
    does it, where the test takes its count from here (`count_of`); None where the parametrized
    cases of the tests are counted.
    """

    name: str
    expected: str
    tests: tuple[str, ...]
    full: int | None
    what: str = "cases"
    codes: tuple[Code, ...] = ()
    sampled: int | None = None


def cases(name: str, expected: str, tests: str, full: int, *codes: Code) -> Scenario:
    """A row whose count is that of its tests' cases."""
    return Scenario(name, expected, tuple(tests.split()), full, "cases", codes)


def rounds(
    name: str, expected: str, test: str, sampled: int, full: int | None, what: str, *codes: Code
) -> Scenario:
    """A row whose count its test takes from here."""
    return Scenario(name, expected, (test,), full, what, codes, sampled)


_STORE, _COMPILE = "robustness/test_cache_store.py", "robustness/test_cache_compile.py"
_WORKER = "robustness/test_worker.py"
_DATA, _MODELS = "robustness/test_mutated_data.py", "robustness/test_mutated_models.py"
_DISK, _OTHER = "robustness/test_disk.py", "robustness/test_other_machines.py"
_ANSWERS, _MUTANTS = "robustness/test_first_answers.py", "robustness/test_mutants.py"
_ARRAYS, _SPECIAL = "robustness/test_given_arrays.py", "robustness/test_special_values.py"
_MANIFESTS = "robustness/test_manifests.py"
_NAMES, _NUMPY = "robustness/test_names.py", "frontends/test_numpy_agreement.py"
_HOSTILE, _DAMAGED = "robustness/test_hostile_models.py", "robustness/test_damaged.py"

_COMPILES = (
    cases(
        "worker killed while it compiles",
        "an error with a reproducer; the next compile has another worker",
        f"{_WORKER}::test_a_worker_that_is_killed_is_told",
        12, Code.NATIVE_CRASH),
    cases(
        "worker hung",
        "ended at the limit of seconds, at most 0.5 s later (the best of three tries counts)",
        f"{_WORKER}::test_a_hung_worker_is_ended_at_the_limit",
        4, Code.COMPILE_TIMEOUT),
    cases(
        "worker hung on a source that is not trusted, under a contract without a limit",
        "ended at the limit that such compiles have by default",
        f"{_WORKER}::test_what_is_not_trusted_has_a_limit_by_default",
        1, Code.COMPILE_TIMEOUT),
    cases(
        "limit of seconds too short",
        "kept, or refused, at most 0.5 s after it (the best of three tries counts)",
        f"{_WORKER}::test_a_limit_is_kept",
        10, Code.COMPILE_TIMEOUT),
    cases(
        "crash in native code",
        "an error with a command that repeats it",
        f"{_WORKER}::test_a_crash_is_an_error_with_a_reproducer "
        f"{_WORKER}::test_a_crash_while_it_is_parsed_is_an_error",
        2, Code.NATIVE_CRASH),
    cases(
        "clock jumps during a compile",
        "the limit is kept: the clock of the day is not asked",
        f"{_WORKER}::test_the_clock_of_the_day_is_not_asked",
        2, Code.COMPILE_TIMEOUT),
    cases(
        "no room for the compiler's temporary files",
        "refused before LLVM would end the process, told where the disk fills up later",
        f"{_DISK}::test_temporary_files_need_a_place "
        f"{_DISK}::test_a_compile_without_room_is_refused "
        f"{_DISK}::test_a_disk_that_fills_up_while_a_tool_compiles "
        f"{_DISK}::test_a_disk_that_fills_up_while_a_worker_compiles",
        7, Code.FILE_ACCESS),
)  # fmt: skip
_CACHE = (
    rounds(
        "bytes of an entry flipped at random",
        "found, dropped and written again",
        f"{_STORE}::test_flipped_bytes_are_found_dropped_and_written_again",
        60, 1000, "flips", Code.CACHE_DAMAGED, Code.CACHE_MISS),
    cases(
        "files of an entry gone, cut, longer, replaced by links or folders",
        "found, dropped and written again",
        f"{_STORE}::test_other_damage",
        21, Code.CACHE_DAMAGED),
    rounds(
        "SIGKILL while an entry is written",
        "every finished entry is there and whole; nothing is left of the others",
        f"{_STORE}::test_killed_while_writing",
        25, 200, "kills"),
    cases(
        "SIGKILL while an entry is dropped",
        "what another process had put in its place comes back, unless it is damaged",
        f"{_STORE}::test_killed_while_dropping",
        2),
    rounds(
        "two and eight processes write, read and drop the same entries",
        "no wrong byte, no event but a miss, nothing left behind",
        f"{_STORE}::test_processes_write_and_read_at_once",
        15, 100, "rounds of each process"),
    cases(
        "two (in full: and eight) processes compile the same model at once",
        "each has the same program; one whole entry",
        f"{_COMPILE}::test_processes_compile_the_same_model_at_once",
        2, Code.CACHE_MISS),
    cases(
        "disk full",
        "the compile goes on, without the cache; nothing is left of what was begun",
        f"{_STORE}::test_full_disk {_COMPILE}::test_a_disk_that_is_full",
        2, Code.CACHE_FOLDER),
    cases(
        "read-only cache",
        "answers as before, keeps nothing new",
        f"{_STORE}::test_read_only_folder_still_answers",
        1, Code.CACHE_FOLDER, Code.CACHE_DAMAGED),
    cases(
        "a folder that is none",
        "the compile goes on, without the cache",
        f"{_STORE}::test_folder_that_cannot_be_written_or_read "
        f"{_COMPILE}::test_a_folder_that_cannot_be_used",
        2, Code.CACHE_FOLDER),
    rounds(
        "clock jumps by years between uses",
        "right answers or a miss, the bound holds, the newest entry stays",
        f"{_STORE}::test_clock_jumps",
        40, 300, "jumps", Code.CACHE_MISS),
)  # fmt: skip
_FILES = (
    cases(
        "disk full or read-only under a tool's -o, --output, --log, --html or --json",
        "refused; what the file held before stays, nothing is left beside it",
        f"{_DISK}::test_what_a_tool_wrote_before_stays {_DISK}::test_a_device_that_is_full "
        f"{_DISK}::test_a_folder_that_may_only_be_read",
        47, Code.FILE_ACCESS),
    rounds(
        "signals at random moments",
        "each tool ends: no process of it is left, no half of a file, none written later",
        "robustness/test_signals.py::test_a_tool_under_signals",
        1, 100, "signals (TERM, INT, KILL) for each tool"),
    rounds(
        "bytes of a program flipped at random",
        "refused, or the program that it was",
        f"{_DAMAGED}::test_a_flipped_byte_is_refused_or_harmless",
        40, 1000, "flips", Code.BAD_ARTIFACT),
    rounds(
        "programs mutated under checksums that fit",
        "a program, or an error with a code",
        f"{_DATA}::test_mutated_artifacts",
        50, 2000, "mutants"),
    rounds(
        "manifests mutated field by field under checksums that fit, loaded and called",
        "the right answer, or an error with a code",
        f"{_MANIFESTS}::test_mutated_manifests",
        100, 2000, "mutants"),
    rounds(
        "logs, calibrations, contracts and verification records mutated",
        "read, or an error with a code",
        f"{_DATA}::test_mutated_files",
        50, 2000, "mutants of each"),
    cases(
        "archives whose entries are compressed, encrypted, there twice or unknown",
        "refused before they are unpacked",
        f"{_DATA}::test_archives_that_are_none_of_ours",
        4, Code.BAD_ARTIFACT),
)  # fmt: skip
_INPUTS = (
    rounds(
        "mutated `.mlir`",
        "linalg, or an error with a code: no crash, no hang",
        f"{_MODELS}::test_mutated_mlir",
        100, 5000, "mutants"),
    rounds(
        "mutated ONNX models",
        "linalg, or an error with a code: no crash, no hang",
        f"{_MODELS}::test_mutated_onnx",
        100, 2000, "mutants"),
    cases(
        "hostile models: overflowing shapes, constants of terabytes, chains of products of "
        "constants, cycles, nesting, doubling",
        "refused, or accepted in little memory and time",
        f"{_HOSTILE}::test_hostile_model",
        48, Code.BAD_MODEL, Code.INVALID_IR, Code.UNSUPPORTED_ATTRIBUTE),
    rounds(
        "extreme attributes of ONNX operators",
        "imported, or an error with a code, in 20 seconds and 2 GiB",
        "robustness/test_onnx_attributes.py::test_extreme_attributes",
        200, None, "numbers, texts and lists of every operator, onnxruntime's too"),
    rounds(
        "untrusted bytecode, damaged",
        "parsed in a worker only: a program, or an error with a code",
        f"{_WORKER}::test_damaged_bytecode_is_told_or_compiles",
        12, 200, "mutants", Code.NATIVE_CRASH, Code.INVALID_IR, Code.BAD_MODEL),
    cases(
        "untrusted bytecode in the caller's process",
        "refused",
        f"{_WORKER}::test_it_is_not_parsed_in_this_process",
        2, Code.BAD_MODEL),
)  # fmt: skip
_TOOLS = (
    cases(
        "control characters and line ends in names of models, nodes, files and options",
        "every tool shows them written out: none reaches a terminal, none begins a line",
        f"{_NAMES}::test_a_model_through_every_tool {_NAMES}::test_a_refusal "
        f"{_NAMES}::test_mlir_text",
        67),
    cases(
        "compiles in one process, one after the other: 10 in each case, in full 1,000",
        "it grows by at most 10 MB more than plain IREE's compiler in as many compiles",
        "robustness/test_compile_memory.py::test_compiles_leave_no_memory_behind",
        6),
)  # fmt: skip
_MACHINES = (
    cases(
        "GPU driver absent",
        "refused, with what to install",
        f"{_OTHER}::test_no_driver {_OTHER}::test_a_vulkan_loader_without_drivers "
        f"{_OTHER}::test_the_command_line_without_a_driver",
        5, Code.DEVICE_UNAVAILABLE),
    cases(
        "program for another target",
        "refused when it is loaded",
        f"{_OTHER}::test_a_program_for_a_gpu_on_a_cpu "
        f"{_OTHER}::test_a_program_for_another_kind_of_cpu "
        f"{_OTHER}::test_what_the_manifest_hides_ireees_loader_finds",
        4, Code.DEVICE_UNAVAILABLE, Code.BAD_ARTIFACT),
    cases(
        "program for a CPU with more features",
        "refused when it is loaded, before an instruction that is not there",
        f"{_OTHER}::test_a_cpu_that_lacks_any_one_feature "
        f"{_OTHER}::test_the_manifest_names_all_that_llvm_may_use_of_the_host",
        2, Code.DEVICE_UNAVAILABLE),
    cases(
        "program of another release of IREE, which the runtime refuses",
        "refused when it is loaded; the message names both releases",
        f"{_OTHER}::test_bytecode_of_another_release",
        3, Code.BAD_ARTIFACT),
    cases(
        "program of another release of IREE, which the runtime accepts",
        "runs; told in log, statistics and contract",
        f"{_OTHER}::test_a_release_that_accepts_the_program_is_told "
        f"{_OTHER}::test_equal_bits_are_promised_for_equal_versions",
        2, Code.RUNTIME_DIFFERS),
)  # fmt: skip
_CALLS = (
    cases(
        "functions of the front end at edge values of each type, in pairs, with scalars",
        "what numpy computes, or an error with a code",
        f"{_NUMPY}::test_ufunc {_NUMPY}::test_scalars {_NUMPY}::test_function",
        206),
    cases(
        "arrays twice, overlapping, strided, backwards, read-only, misaligned, stretched",
        "what numpy computes; the arguments stay as they were",
        f"{_ARRAYS}::test_arrays_of_any_layout {_ARRAYS}::test_one_device_array_twice",
        20),
    cases(
        "arrays given for results that overlap an input or each other",
        "refused before the call",
        "runtime/test_arena.py::test_out_is_checked "
        "runtime/test_arena.py::test_two_outputs_need_two_memories",
        2, Code.OUTPUT_OVERLAP),
    cases(
        "arrays donated while they are still read",
        "refused before the call",
        "runtime/test_memory_of_callers.py::test_what_is_refused",
        1, Code.DONATION_UNSAFE),
    cases(
        "NaN and infinities through every op",
        "what the numpy references compute, for every way to compile; minimal filtering and groups "
        "computed together spread them (docs/kernels.md)",
        f"{_SPECIAL}::test_special_values",
        288),
    rounds(
        "injected miscompiles, every mutation operator over the ops",
        "each that changes a value by more than the reference allows is found by samples or the "
        "first call",
        f"{_MUTANTS}::test_every_mutant_that_changes_a_value_is_found",
        1, 60, "batches of calls of ops and of random graphs"),
    rounds(
        "injected miscompiles through whole compiles",
        "no answer leaves",
        f"{_MUTANTS}::test_compiled_mutants_give_no_answer",
        5, 300, "mutants", Code.WRONG_RESULT),
    rounds(
        "random graphs",
        "the first answer is right",
        f"{_ANSWERS}::test_random_graphs",
        6, 2000, "graphs"),
    rounds(
        "ONNX's node cases",
        "the first answer is right, wherever a case compiles",
        f"{_ANSWERS}::test_onnx_node_cases",
        12, None, "cases"),
)  # fmt: skip

GROUPS: Mapping[str, Sequence[Scenario]] = {
    "Compiles": _COMPILES,
    "The cache": _CACHE,
    "Files": _FILES,
    "Models of strangers": _INPUTS,
    "Tools and processes": _TOOLS,
    "Other machines": _MACHINES,
    "Calls and answers": _CALLS,
}
SCENARIOS = [row for rows in GROUPS.values() for row in rows]
_BY_NAME = {row.name: row for row in SCENARIOS}


def count_of(name: str) -> int:
    """How often a test does what the row of this name says.

    Where a full run takes all that there are, this is how many are sampled otherwise.
    """
    row = _BY_NAME[name]
    assert row.sampled is not None
    return row.full if FULL and row.full is not None else row.sampled
