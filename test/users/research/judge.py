import sys

from pyc_mlir.artifact.artifact import read

# A program is bad in which the product is not fused with what follows.
fused = any(d.chosen.startswith("fuse:matmul") for d in read(sys.argv[1]).decisions)
sys.exit(0 if fused else 1)
