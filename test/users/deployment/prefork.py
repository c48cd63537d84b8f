import os

import numpy as np

import pyc_mlir

x = np.ones((2, 1, 8, 8), np.float32)
program = pyc_mlir.load("model.vmfb", pyc_mlir.Device("local-task"))
expected = program(x)  # the parent serves, too
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        same = np.array_equal(pyc_mlir.load("model.vmfb")(x), expected)
        os._exit(0 if same else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0, 0, 0] and np.array_equal(program(x), expected)
print("workers answer")
