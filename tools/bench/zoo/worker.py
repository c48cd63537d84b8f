"""One system on one network in a process of its own: `peers/worker.py` with the zoo's systems."""

import sys

from pyc_mlir.tools.bench.peers import worker
from pyc_mlir.tools.bench.zoo.systems import SYSTEMS

if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], SYSTEMS))
