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


KINDS = ("local-sync", "local-task")


@pytest.mark.parametrize(("does", "kind"), sample(list(product(CHILDREN, KINDS)), 4, seed=1))
@pytest.mark.full
def test_a_forked_child(does, kind):
    code = PARENT.format(kind=kind, child=CHILDREN[does])
    command = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(command, timeout=120).returncode == 7
