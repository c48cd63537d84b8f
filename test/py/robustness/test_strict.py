"""Strict determinism: equal bytes from fresh processes, equal bits from runs and thread counts."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ALL_CASES, FULL

import pyc_mlir
from pyc_mlir import Contract, Device, Program, PycError, ReasonCode
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.compilation.options import make_options
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.contract import STRICT

MODELS = Path(__file__).parents[1] / "support" / "strict_models.py"
NAMES = ("encoder", "images", "chain", "doubles") if ALL_CASES else ("encoder", "doubles")
PROCESSES = 4 if FULL else 2
RUNS = 50 if FULL else 4


def compiled(name: str, folder: Path, number: int) -> bytes:
    """The artifact of a fresh process, each with another seed for hashes and threads for BLAS."""
    path = folder / f"{name}-{number}.vmfb"
    command = [sys.executable, "-m", "pyc_mlir.tools.pyc_compile", f"{MODELS}:{name}"]
    command += ["--determinism", "strict", "--max-error", "rounding", "--memory-budget", "64MiB"]
    seeds = {"PYTHONHASHSEED": str(number), "OPENBLAS_NUM_THREADS": str(number % 2 + 1)}
    environment = {**os.environ, **seeds}
    subprocess.run([*command, "-o", str(path)], check=True, env=environment, capture_output=True)
    return path.read_bytes()


@pytest.fixture(scope="module", params=NAMES)
def artifacts_of(request: pytest.FixtureRequest, tmp_path_factory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("strict")
    return [compiled(request.param, folder, n) for n in range(PROCESSES)]


def test_fresh_processes_make_the_same_bytes(artifacts_of):
    assert len({hashlib.sha256(data).hexdigest() for data in artifacts_of}) == 1


def test_runs_and_threads_give_the_same_bits(artifacts_of):
    artifact = artifacts.from_bytes(artifacts_of[0])
    results = set()
    for device in (Device("local-sync"), *(Device("local-task", n) for n in (1, 2, 3))):
        program = Program(artifact, device)
        stream = np.random.default_rng(0)
        arrays = [
            stream.standard_normal(
                [5 if d is None or isinstance(d, str) else d for d in a.shape]
            ).astype(a.dtype)
            for a in artifact.signature.inputs
        ]
        for _ in range(RUNS):
            answers = program(*arrays)
            parts = answers if isinstance(answers, tuple) else (answers,)
            results.add(b"".join(p.tobytes() for p in parts))
    assert len(results) == 1


def test_no_decision_rests_on_a_clock(artifacts_of):
    """Evidence that another run would change stands in `measured`, and no artifact has any."""
    decisions: tuple[Decision, ...] = tuple(artifacts.from_bytes(artifacts_of[0]).decisions)
    assert decisions and all(not d.measured for d in decisions)


def test_the_planners_searches_end_by_work_alone():
    """The bound that a compile gives them is a count, and nothing in their way looks at a clock."""
    folder = Path(pyc_mlir.__file__).parents[1] / "pipelines"
    clocks = ("perf_counter", "monotonic", "time.time", "process_time", "default_timer")
    asking = [
        path.name
        for path in sorted(folder.rglob("*.py"))
        if any(clock in path.read_text() for clock in clocks)
    ]
    # It tells how long passes took, to people.
    assert asking == ["pass_manager.py"]


def refused(**requested: Any) -> str:
    """What is said of strict options that cannot be kept."""
    make_options(**requested)
    with pytest.raises(PycError) as caught:
        make_options(**requested, contract=Contract(determinism=STRICT))
    assert caught.value.code is ReasonCode.CONTRACT_CONFLICT
    return caught.value.message


@pytest.mark.parametrize("flag", ["dialect-library=x.mlir", "source=a=b.mlir"])
def test_no_flag_that_names_a_file(flag):
    """Under the same text another file may stand there the next time."""
    assert "what a file holds" in refused(iree_flags=[f"--iree-x-{flag}"])
    make_options(iree_flags=["--iree-opt-level=O1"], contract=Contract(determinism=STRICT))


def test_no_variable_that_has_other_code_take_part(monkeypatch):
    monkeypatch.setenv("NPY_ENABLE_CPU_FEATURES", "AVX2")
    assert "the variable `NPY_ENABLE_CPU_FEATURES`" in refused()
