"""Children end with the process that started them, however that one ends."""

import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from conftest import sample

from pyc_mlir.util import children

# What starts children that would write a file after two seconds; it says when they are there.
FORKED = """
from pyc_mlir.tools.cli.guarded import run_guarded
def work(progress):
    open("there", "w")
    time.sleep(2)
    open("late", "w")
    return 0
run_guarded(work)
"""
STARTED = """
from pyc_mlir.util.children import run
run("(sleep 2; touch late) & touch there; sleep 2; touch late")
"""
WORKER = """
from pyc_mlir.worker import process
process.BOOT = "import time; open('there', 'w'); time.sleep(2); open('late', 'w')"
worker = process.WorkerProcess()
time.sleep(4)
"""
FOLDER = """
from pyc_mlir.util.children import run, temporary_folder
import tempfile
tempfile.tempdir = os.getcwd()
with temporary_folder() as folder:
    (folder / "file").write_text("")
    run("touch there; sleep 2; touch late")
"""


def started(code: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that runs `code`, once its children are there."""
    command = [sys.executable, "-c", f"import os, time{code}"]
    process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    until = time.monotonic() + 30
    while not (folder / "there").exists() and time.monotonic() < until:
        assert process.poll() is None, f"it ended with {process.returncode}"
        time.sleep(0.01)
    return process


CODES = {"forked": FORKED, "started": STARTED, "worker": WORKER}
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)


@pytest.mark.parametrize(("name", "number"), sample(list(product(CODES, SIGNALS)), 5))
@pytest.mark.full
def test_a_signal_ends_the_children_too(name: str, number: signal.Signals, tmp_path: Path) -> None:
    process = started(CODES[name], tmp_path)
    os.kill(process.pid, number)
    process.wait(timeout=30)
    time.sleep(2.5)
    assert {p.name for p in tmp_path.iterdir()} == {"there"}
    if number is not signal.SIGINT:
        assert process.returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_temporary_folder_goes_with_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    process = started(FOLDER, tmp_path)
    os.kill(process.pid, number)
    process.wait(timeout=30)
    assert {p.name for p in tmp_path.iterdir()} == {"there"}


def test_run_answers_as_subprocess_does() -> None:
    done = children.run("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert children.run(["printf", "%s", "$HOME a"]).stdout == "$HOME a"
    assert children.run("cat").stdout == "", "there is nothing on standard input"


def test_a_child_is_not_tied_to_a_thread() -> None:
    from threading import Thread

    lines: list[children.Lifeline] = []
    found: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        line = children.Lifeline()
        found.append(subprocess.Popen(["sleep", "60"], pass_fds=(line.fd,), process_group=0))
        line.tie(-found[0].pid)
        lines.append(line)

    thread = Thread(target=start)
    thread.start()
    thread.join()
    with pytest.raises(subprocess.TimeoutExpired):
        found[0].wait(timeout=0.3)
    lines[0].cut()
    assert found[0].wait(timeout=30) == -signal.SIGKILL
