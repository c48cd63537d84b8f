"""The names by which kernels are chosen for groups, attached to ops, declared, and held."""

# The pass that chooses, and what it calls IREE's own code.
SELECT = "pyc-select-kernels"
IREE = "iree"

ATTRIBUTE = "pyc.kernel"
# On a barrier that keeps IREE from running the stub of a kernel when it compiles.
HELD = "pyc.held"
# By family, the one whose kernels are the same and detect faults of hardware.
CHECKED = {"gemm": "checked_gemm"}
# By family, the one whose kernels compute about the same in less time, with a check of each tile.
APPROXIMATED = {"gemm": "approximate_gemm"}
