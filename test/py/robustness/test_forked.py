"""In a forked child, which has none of its parent's threads, nothing waits for them."""

import subprocess
import sys
from itertools import product

import pytest
from conftest import sample

PARENT = """
import os, sys
import numpy as np
import pyc_mlir
from pyc_mlir import Contract, Device, PycError

X = np.ones(2, np.float32)
device = Device({kind!r})
program = pyc_mlir.compile(lambda x: x + 1, [X], device=device)
result = program(X)
child = os.fork()
if child == 0:
{child}
    os._exit(1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
CHILDREN = {
    "compiles": """
    try:
        pyc_mlir.compile(lambda x: x + 2, [X], device=Device("local-sync"))
    except PycError as error:
        os._exit(7 if error.code.name == "FORKED_CHILD" and "`spawn`" in str(error) else 1)
""",
    "compiles in a worker": """
    contract = Contract(max_compile_seconds=100)
    again = pyc_mlir.compile(lambda x: x + 3, [X], contract=contract, device=Device("local-sync"))
    os._exit(7 if (again(X) == X + 3).all() else 1)
""",
    "drops a device": """
    result = program = device = None
    os._exit(7)
""",
    "ends": "    sys.exit(7)",
}


KINDS = ("local", "local-sync", "local-task")


# With threads that help: a child goes on with what the parent has loaded, and has helpers again.
HELPED = """
import os
from pathlib import Path
import numpy as np
import pyc_mlir
from pyc_mlir import Device
from pyc_mlir.runtime.pool import POOL

def helpers():
    names = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]
    return [n for n in names if n.startswith("pyc-helper")]

X = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
program = pyc_mlir.compile(lambda x: x @ x.T + 1, [X], device=Device("local", threads=3))
expected = program(X)
for _ in range(10):
    assert (program(X) == expected).all()  # helpers are awake
    child = os.fork()
    if child == 0:
        assert not helpers()
        good = all((program(X) == expected).all() for _ in range(20))
        os._exit(7 if good and len(helpers()) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

# As if another thread were in a job, whose state is on its stack: a helper of the child that took
# of it would call what is not there any more.
POOL.stop()
job = POOL._int64(0, 7)
job[:] = [(int(job[0]) >> 24) + 1 << 24 | 2 << 12 | 64, 8, 8, 8, 0x1F80, 64, 1]
child = os.fork()
if child == 0:
    sleeps = POOL.statistics().sleeps
    POOL.start()
    while POOL.statistics().sleeps < sleeps + 2:
        pass
    os._exit(7 if (program(X) == expected).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_children_go_on_with_programs_that_have_helpers():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", HELPED], timeout=120)
    assert done.returncode == 0


# As gunicorn with `--preload`: the parent has served already, each worker loads for itself.
PREFORK = """
import os, socket, struct, sys
import numpy as np
import pyc_mlir
from pyc_mlir import Device, PycError, ReasonCode
from pyc_mlir.runtime import device as devices

devices.IS_SUPPORTED = False  # IREE's workers, as on other CPUs
devices.Device.cpu_kind = staticmethod(lambda cores, seconds=None: "local-task")
path = sys.argv[1]
X = np.ones((4, 64), np.float32)
pyc_mlir.compile(lambda x: x @ x.T + 1, [X], cache=False).save(path)
program = pyc_mlir.load(path)
expected = program(X)

def serve(connection):
    try:
        program(X)
        return 1
    except PycError as error:
        if error.code is not ReasonCode.DEVICE_UNAVAILABLE or "in the child" not in str(error):
            return 2
    own = pyc_mlir.load(path)
    again = pyc_mlir.load(path)
    if own.device is not again.device or own.device is program.device:
        return 3
    for request in iter(lambda: connection.recv(4), b""):
        x = np.full((4, 64), struct.unpack("f", request)[0], np.float32)
        connection.sendall(own(x).tobytes())
    return 7

workers = []
for _ in range(3):
    mine, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        for other, _ in workers:
            other.close()
        mine.close()
        os._exit(serve(theirs))
    theirs.close()
    workers.append((mine, child))
for number in range(30):
    mine, _ = workers[number % 3]
    mine.sendall(struct.pack("f", number))
    answer = np.frombuffer(mine.recv(4 * 4 * 4, socket.MSG_WAITALL), np.float32).reshape(4, 4)
    assert (answer == number * number * 64 + 1).all(), answer
    assert (program(X) == expected).all()  # the parent goes on
for mine, child in workers:
    mine.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_workers_of_a_prefork_server_load_for_themselves(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", PREFORK, str(tmp_path / "p.vmfb")]
    assert subprocess.run(command, timeout=120).returncode == 0


@pytest.mark.parametrize(("does", "kind"), sample(list(product(CHILDREN, KINDS)), 4, seed=1))
@pytest.mark.full
def test_a_forked_child(does, kind):
    code = PARENT.format(kind=kind, child=CHILDREN[does])
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, timeout=120).returncode == 7
