"""pyc-run in this process, and once where no compiler can be imported."""

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from modules import add_artifact, ramp
from pythons import without_compilers

from pyc_mlir import PycError, ReasonCode
from pyc_mlir.artifact import artifact
from pyc_mlir.artifact.signature import SignatureEntry
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.runtime.pool import IS_SUPPORTED
from pyc_mlir.tools import pyc_run
from pyc_mlir.tools.cli.run_inputs import read_inputs

F32 = DTYPES["f32"]
AB = (SignatureEntry("a", F32, (None,)), SignatureEntry("b", F32, (None,)))


@pytest.fixture
def program(tmp_path, monkeypatch) -> str:
    """A saved program of a[n] + b[n] in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    artifact.write(add_artifact((None,)), "add.vmfb")
    return "add.vmfb"


def ran(capsys, *argv: str) -> str:
    status = pyc_run.main(argv)
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


def test_values_on_the_command_line(program, capsys):
    out = ran(capsys, program, "--input", "3xf32=1 2 3.5", "--input", "3xf32=1", "--stats")
    assert out.startswith("r: 3xf32\n[2.  3.  4.5]\n")
    assert "\nmemory         " in out and "at the peak" in out and "calls          1\n" in out


@pytest.mark.skipif(not IS_SUPPORTED, reason="no helpers on this system")
def test_helpers_have_a_line_of_statistics(program, capsys):
    arguments = (program, "--input", "3xf32", "--input", "3xf32", "--stats", "--threads")
    line = r"\nthreads        2: \d+ forks, .* units helped, turned off \d+ times\n"
    assert re.search(line, ran(capsys, *arguments, "2"))
    assert "forks" not in ran(capsys, *arguments, "1")


def test_inputs_by_name_come_in_any_order(program, capsys):
    ran(capsys, program, "--input", "b=2xf32=1", "--input", "2xf32=3", "--output", "r.npy")
    np.testing.assert_array_equal(np.load("r.npy"), np.full(2, 4, np.float32))


@pytest.mark.parametrize("keys", [("a", "b"), ("arr_0", "arr_1")])
def test_archives_by_name_or_in_order(program, capsys, keys):
    arrays: dict[str, Any] = dict.fromkeys(keys, ramp(4))
    np.savez("in.npz", **arrays)
    ran(capsys, program, "--input", "in.npz", "--output", "out.npz", "--device", "local-sync")
    np.testing.assert_array_equal(np.load("out.npz")["r"], 2 * ramp(4))


def test_array_files_and_seeds(program, capsys):
    np.save("a.npy", ramp(5))
    ran(capsys, program, "--input", "a.npy", "--input", "b=5xf32=@seed:7", "--output", "r.npy")
    drawn = np.random.default_rng(7).standard_normal(5).astype(np.float32)
    np.testing.assert_array_equal(np.load("r.npy"), ramp(5) + drawn)


def test_without_inputs_known_sizes_are_filled_at_random(program, capsys):
    artifact.write(add_artifact((4,)), "four.vmfb")
    assert pyc_run.main(["four.vmfb", "--output", "r.npy"]) == 0
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "no --input: random numbers" in line
    flags = line.rpartition("as by ")[2].split()
    assert flags == ["--input", "a=4xf32=@seed:0", "--input", "b=4xf32=@seed:1"]
    ran(capsys, "four.vmfb", *flags, "--output", "again.npy")
    np.testing.assert_array_equal(np.load("r.npy"), np.load("again.npy"))


def test_bf16_survives_numpys_files(program, capsys):
    artifact.write(add_artifact((2,), "bf16"), "bf16.vmfb")
    np.save("x.npy", np.array([1, 2], ml_dtypes.bfloat16))
    arguments = ("--input", "x.npy", "--input", "2xbf16=0.5")
    assert "[1.5 2.5]" in ran(capsys, "bf16.vmfb", *arguments)
    ran(capsys, "bf16.vmfb", *arguments, "--output", "y.npz")
    saved = np.load("y.npz")["r"].view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(saved.astype(np.float32), [1.5, 2.5])


def test_large_results_are_cut(program, capsys):
    out = ran(capsys, program, "--input", "1000xf32", "--input", "1000xf32")
    assert "..." in out and len(out) < 200


def test_repeat_tells_the_latency(program, capsys):
    arguments = ("--input", "3xf32", "--input", "3xf32", "--repeat", "5", "--threads", "1")
    assert "latency of 5 calls" in ran(capsys, program, *arguments)
    ticks = iter([0.0, 0.001, 0.0, 0.002, 0.0, 0.003])
    text = pyc_run.latency(lambda: None, 3, lambda: next(ticks))
    assert "median 2 ms" in text and "p10 1.2 ms" in text and "p90 2.8 ms" in text


def test_repeated_result_names_stay_apart():
    assert pyc_run.result_names((AB[0], AB[0], AB[1])) == ["a0", "a1", "b"]


REFUSED = [
    ((), ReasonCode.ARGUMENT_COUNT, "--input a=1xf32=@seed:0 --input b=1xf32=@seed:0"),
    (("--input", "3xf32"), ReasonCode.ARGUMENT_COUNT, "got 1"),
    (("--input", "3xf32", "--input", "4xf32"), ReasonCode.DIMENSION_MISMATCH, "n"),
    (("--input", "3xf64", "--input", "3xf32"), ReasonCode.ARGUMENT_DTYPE, "`a`"),
    (("--input", "none.npy", "--input", "3xf32"), ReasonCode.FILE_ACCESS, "none.npy"),
    (("--input", "add.vmfb", "--input", "3xf32"), ReasonCode.BAD_ARGUMENT, "add.vmfb"),
    (("--input", "3xf32=1 2", "--input", "3xf32"), ReasonCode.BAD_ARGUMENT, "1 or 3 values"),
    (("--input", "3xf32=one", "--input", "3xf32"), ReasonCode.BAD_ARGUMENT, "one"),
    (("--input", "a=3xf32", "--input", "y=2x64xf32"), ReasonCode.BAD_ARGUMENT, "no input `y`"),
    (("--input", "y=y.npy", "--input", "3xf32"), ReasonCode.BAD_ARGUMENT, "input (`a`, `b`)"),
    (("--input", "a=3xf32", "--input", "a=3xf32"), ReasonCode.BAD_ARGUMENT, "second"),
    (("--device", "abacus"), ReasonCode.BAD_ARGUMENT, "local-sync"),
    (("--device", "local-sync", "--threads", "2"), ReasonCode.BAD_ARGUMENT, "threads"),
    (("--repeat", "0"), ReasonCode.BAD_ARGUMENT, "above 0"),
    (("--output", "x.txt"), ReasonCode.BAD_ARGUMENT, "x.txt"),
    (("--nonsense",), ReasonCode.BAD_ARGUMENT, "--nonsense"),
]


@pytest.mark.parametrize(("argv", "code", "text"), REFUSED, ids=[str(r[0]) for r in REFUSED])
def test_faults_of_the_user_are_one_message(program, capsys, argv, code, text):
    artifact.write(add_artifact(("n",)), program)
    status, err = pyc_run.main([program, *argv]), capsys.readouterr().err
    assert status == (2 if "command line: " in err else 1)
    assert f"[{code.name}]" in err and text in err and "Traceback" not in err


@pytest.mark.parametrize("name", ["none.vmfb", "text.vmfb"])
def test_files_that_are_no_programs(program, capsys, name):
    Path("text.vmfb").write_text("hello")
    assert pyc_run.main([name]) == 1
    assert f"{name}: expected" in capsys.readouterr().err


def test_a_model_is_to_be_compiled_first(program, capsys):
    Path("m.onnx").write_bytes(b"model")
    assert pyc_run.main(["m.onnx"]) == 1
    assert "`pyc-compile m.onnx -o model.vmfb` [BAD_ARTIFACT]" in capsys.readouterr().err


def test_damaged_array_files_are_refused(program):
    np.savez("x.npz", a=ramp(3))
    Path("cut.npz").write_bytes(Path("x.npz").read_bytes()[:60])
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    np.savez("other.npz", a=ramp(3), z=ramp(3))
    for name in ("cut.npz", "objects.npy", "other.npz"):
        with pytest.raises(PycError, match=name):
            read_inputs([name], AB)


def test_the_example_of_missing_inputs_is_within_the_ranges():
    with pytest.raises(PycError, match="--input a=32xf32=@seed:0"):
        read_inputs([], AB, ranges={"a[0]": (32, 64)})


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "i32", "i64", "i1"])
def test_every_element_type_has_text(dtype):
    argument = SignatureEntry("x", DTYPES[dtype], (2, 2))
    for text in ("=1", "=1 0 0 1", "=@seed:3", ""):
        (array,) = read_inputs([f"2x2x{dtype}{text}"], (argument,))
        assert array.dtype == DTYPES[dtype] and array.shape == (2, 2)
    (scalar,) = read_inputs([f"{dtype}=1"], (argument,))
    assert scalar.shape == () and scalar == 1


def test_runs_where_no_compiler_is_installed(program):
    inputs = ["--input", "2xf32=1", "--input", "2xf32=2", "--repeat", "2", "--stats"]
    text = without_compilers("pyc_run", program, *inputs)
    assert "[3. 3.]" in text and "latency of 2 calls" in text
