"""Read the decisions of a compile, force another one, and compare what it costs."""

import numpy as np

import pyc_mlir
from pyc_mlir import Recipe, nn

rng = np.random.default_rng(0)
w1, w2 = (rng.normal(0, 0.05, s).astype(np.float32) for s in ((256, 512), (512, 256)))


def model(x):
    return nn.gelu(x @ w1) @ w2 + x


x = rng.normal(size=(64, 256)).astype(np.float32)
program = pyc_mlir.compile(model, (x,))
for decision in program.artifact.decisions:
    names = [a.name for a in decision.alternatives]
    print(f"{decision.site.key}: {decision.chosen} of {names}")

fused = next(d for d in program.artifact.decisions if len(d.alternatives) > 1)
other = next(a.name for a in fused.alternatives if a.name != fused.chosen)
changed = pyc_mlir.compile(model, (x,), recipe=Recipe({fused.site.key: other}, tolerant=True))
print("forced", fused.site.key, "to", other)
assert np.allclose(changed(x), program(x), atol=1e-4)
