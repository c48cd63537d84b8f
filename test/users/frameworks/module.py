import numpy as np
from model import expected, model, x

import pyc_mlir

program = pyc_mlir.compile(model, [x])
np.testing.assert_allclose(np.asarray(program(x)), expected, rtol=1e-4, atol=1e-5)
program.save("module.vmfb")
np.testing.assert_allclose(
    np.asarray(pyc_mlir.load("module.vmfb")(x)), expected, rtol=1e-4, atol=1e-5
)
print("module", program)
