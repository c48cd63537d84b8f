import concurrent.futures as futures

import numpy as np

import pyc_mlir

program = pyc_mlir.load("model.vmfb")
x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
with futures.ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(lambda _: program(x), range(40)))
assert all(np.array_equal(answers[0], a) for a in answers)
try:
    program(x[:, :, :4])
except pyc_mlir.PycError as error:
    print(error)
print(program.stats())
