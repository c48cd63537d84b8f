"""A tool that is ended by a signal leaves no process, no half of a file and no late one.

Each tool has a job whose output is a file. `undisturbed` runs it to its end, `disturbed` sends a
signal at a moment of a seed's choice and says what is wrong with what is left.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import rounds, sample

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
# How long processes are waited for that are on their way out; they may not write meanwhile.
GONE_SECONDS = 20
# What marks the processes of one run, however far they are from the tool.
MARK = "PYC_TEST_SIGNALLED"
KIND = "tensor<8x8xf32>"
OUT, BEFORE = "out", b"what was there before"


def module(ops: int) -> str:
    """A chain of products and sigmoids."""
    lines, last = [], "%a"
    for i in range(ops):
        op, given = ("matmul", [last, "%a"]) if i % 2 else ("sigmoid", [last])
        kinds = ", ".join([KIND] * len(given))
        lines.append(f'  %{i} = "pyc.{op}"({", ".join(given)}) : ({kinds}) -> {KIND}')
        last = f"%{i}"
    body = "\n".join(lines)
    return f"func.func @main(%a: {KIND}) -> {KIND} {{\n{body}\n  return {last} : {KIND}\n}}\n"


@dataclass(frozen=True)
class Job:
    """A command to be run in a folder of `prepared`, which may write the file `OUT` there.

    most: the latest moment of a signal, in seconds; 0: the time that the command takes.
    """

    command: tuple[str, ...]
    most: float = 0


def tool(name: str, *arguments: str, most: float = 0) -> Job:
    code = f"import sys; from pyc_mlir.tools.{name} import main; sys.exit(main())"
    return Job((sys.executable, "-c", code, *arguments), most)


SLOW = "sleep 0.1; test -s {} && ! grep -q sigmoid {}"
JOBS: Mapping[str, Job] = {
    "pyc-opt": tool("pyc_opt", "long.mlir", "--pyc-fuse", "-o", OUT),
    "pyc-compile": tool("pyc_compile", "small.mlir", "-o", OUT),
    "pyc-compile in a worker": tool("pyc_compile", "small.mlir", "--untrusted", "-o", OUT),
    "pyc-run": tool("pyc_run", "good.vmfb", "--input", "8x8xf32=@seed:0", "--output", "out.npy"),
    "pyc-explain": tool("pyc_explain", "good.vmfb", "--html", OUT),
    "pyc-explain --bisect": tool(
        "pyc_explain", "small.mlir", "--bisect", "good.vmfb", "bad.vmfb",
        "--check", "sleep 0.2; ! cmp -s {} bad.vmfb", most=3,
    ),
    "pyc-reduce --check": tool("pyc_reduce", "small.mlir", "--check", SLOW, "-o", OUT, most=3),
    "pyc-reduce --code": tool(
        "pyc_reduce", "broken.mlir", "--code", "INVALID_IR", "-o", OUT, most=3
    ),
    "pyc-doctor": tool("pyc_doctor", "--calibrate", OUT, most=3),
    "pyc-cache": tool("pyc_cache", "ls"),
    "pyc-bench": tool("pyc_bench", "replay", "--quick", "--json", OUT, most=3),
}  # fmt: skip


def prepared(folder: Path) -> None:
    """Write what the jobs read."""
    for name, text in (("small.mlir", module(12)), ("long.mlir", module(3000))):
        (folder / name).write_text(text)
    (folder / "broken.mlir").write_text(module(12).replace('"pyc.matmul"(%0, ', '"pyc.matmul"(', 1))
    for name, flags in (("good.vmfb", ()), ("bad.vmfb", ("--planner-mode=iree", "--kernels=iree"))):
        compile_it = tool("pyc_compile", "small.mlir", "-o", name, *flags).command
        subprocess.run(compile_it, cwd=folder, check=True, capture_output=True, timeout=120)


def undisturbed(job: Job, folder: Path, scratch: Path) -> tuple[float, dict[str, bytes]]:
    """Seconds of the command and the files there are then; of a long one `most` and none."""
    work = scratch / "undisturbed"
    shutil.copytree(folder, work)
    began = time.monotonic()
    if not job.most:
        subprocess.run(job.command, cwd=work, check=True, capture_output=True, timeout=120)
        assert (work / OUT).exists() or OUT not in job.command
    seconds = time.monotonic() - began
    made = {} if job.most else files(work)
    shutil.rmtree(work)
    return job.most or seconds, made


def disturbed(
    job: Job, folder: Path, scratch: Path, seed: int, reference: tuple[float, dict[str, bytes]]
) -> str:
    """The fault after a signal at the moment of a seed ('' when there is none).

    reference: what `undisturbed` found.
    """
    draw = random.Random(seed)
    seconds, made = reference
    work = scratch / str(seed)
    shutil.copytree(folder, work)
    if has_before := draw.random() < 0.5:
        (work / OUT).write_bytes(BEFORE)
    mark = f"{os.getpid()}-{seed}-{work.name}"
    process = subprocess.Popen(
        job.command, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, MARK: mark}, start_new_session=True,
    )  # fmt: skip
    time.sleep(draw.uniform(0, 1.1) * seconds)
    to_all = draw.random() < 0.3
    try:
        number = SIGNALS[(seed + len(job.command)) % len(SIGNALS)]
        os.killpg(process.pid, number) if to_all else os.kill(process.pid, number)
    except ProcessLookupError:
        pass
    process.wait(timeout=120)
    left, until = files(work), time.monotonic() + GONE_SECONDS
    while (alive := marked(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    if alive:
        return f"still there: {alive}"
    if files(work) != left:
        return "files were written after the end"
    allowed = {**files(folder), **({OUT: BEFORE} if has_before else {})}
    for name, data in left.items():
        if data != allowed.get(name) and made and data != made.get(name):
            return f"{name} is new, and not what the tool writes"
        if name.startswith(".pyc-"):
            return f"{name} is left"
    shutil.rmtree(work)
    return ""


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, those in folders of it too."""
    found = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def marked(mark: str) -> list[str]:
    """The command lines of processes with the mark in their environment."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue  # it has ended, or is another user's
    return found


ROUNDS = rounds(1, 100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("inputs")
    prepared(made)
    return made


@pytest.mark.parametrize("name", sample(list(JOBS), 4))
@pytest.mark.full
@pytest.mark.alone
def test_a_tool_under_signals(name: str, folder: Path, tmp_path: Path, record_property) -> None:
    job = JOBS[name]
    reference = undisturbed(job, folder, tmp_path)
    wrong = [(s, w) for s in range(ROUNDS) if (w := disturbed(job, folder, tmp_path, s, reference))]
    assert not wrong
    record_property("signals at random moments", {name: ROUNDS})
