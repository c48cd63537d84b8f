"""Helpers under signals, stops, forks, neighbours and several callers: right bits, and an end.

PYC_STRESS_CALLS sets the number of calls for each number of helpers.
"""

import os
import subprocess
import sys

import pytest

from pyc_mlir.runtime.pool import IS_SUPPORTED

CALLS = int(os.environ.get("PYC_STRESS_CALLS", "3000"))
# Three callers; a timer's signals, stops of the whole process, busy neighbours, forks.
STRESS = """
import os, random, signal, subprocess, sys, threading, time
import numpy as np
import pyc_mlir
from pyc_mlir import Device
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.pool import POOL

path, threads, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
program = pyc_mlir.load(path, Device("local", threads=threads))
x = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
given = to_device(x, program.device)
expected = pyc_mlir.load(path, Device("local-sync"))(x)
wrong, longest, left = [], [0.0], [calls]

# Forks between calls only: a child would have the locks of calls that others were in.
quiet = [threading.Lock() for _ in range(3)]

def call(turn):
    while left[0] > 0:
        left[0] -= 1
        with turn:
            once()

def once():
    began = time.perf_counter()
    found = program(given)
    longest[0] = max(longest[0], time.perf_counter() - began)
    if not (np.asarray(found) == expected).all():
        wrong.append(1)

STOPPER = '''
import os, random, signal, sys, time
while os.getppid() == int(sys.argv[1]):
    time.sleep(random.uniform(0.005, 0.05))
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(random.uniform(0, 0.003))
    os.kill(int(sys.argv[1]), signal.SIGCONT)
'''
spin = "import os, sys\\nwhile os.getppid() == int(sys.argv[1]): pass"
run = [sys.executable, "-S", "-c"]
others = [subprocess.Popen([*run, code, str(os.getpid())]) for code in (STOPPER, spin)]
signals = [0]
signal.signal(signal.SIGALRM, lambda *_: signals.__setitem__(0, signals[0] + 1))
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
callers = [threading.Thread(target=call, args=(turn,)) for turn in quiet]
for caller in callers:
    caller.start()
forks = 0
while any(c.is_alive() for c in callers):
    time.sleep(0.05)
    for turn in quiet:
        turn.acquire()
    child = os.fork()
    if child == 0:
        os._exit(0 if all((program(x) == expected).all() for _ in range(3)) else 1)
    for turn in quiet:
        turn.release()
    _, status = os.waitpid(child, 0)
    wrong.extend([2] * (status != 0))
    forks += 1
    if forks % 4 == 0:
        others.append(others.pop(1))
        others[-1].kill()
        others[-1] = subprocess.Popen([*run, spin, str(os.getpid())])
signal.setitimer(signal.ITIMER_REAL, 0)
for other in others:
    other.kill()
print(f"{calls} calls, {forks} forks, {signals[0]} signals, longest {longest[0] * 1e3:.1f} ms,",
      POOL.statistics())
sys.exit(1 if wrong else 0)
"""
MODEL = """
import sys
import numpy as np
import pyc_mlir

def chain(x):
    for _ in range(3):
        x = pyc_mlir.nn.softmax(x @ x.T) @ x
    return x

pyc_mlir.compile(chain, [np.ones((64, 96), np.float32)], cache=False).save(sys.argv[1])
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("stress") / "chain.vmfb")
    assert subprocess.run([sys.executable, "-c", MODEL, path], timeout=300).returncode == 0
    return path


@pytest.mark.skipif(not IS_SUPPORTED, reason="no helpers on this system")
@pytest.mark.parametrize("threads", [2, 4, 9])
@pytest.mark.full
def test_helpers_under_stress(path, threads):
    command = [sys.executable, "-W", "ignore", "-c", STRESS, path, str(threads), str(CALLS)]
    done = subprocess.run(command, timeout=60 + CALLS / 100, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
