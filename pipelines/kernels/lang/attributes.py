"""The names by which kernels are chosen for groups, attached to ops, declared, and held."""

# The pass that chooses, and how the evidence of its decisions begins that lists a group's ops.
SELECT = "pyc-select-kernels"
COMPUTES = "computes "

ATTRIBUTE = "pyc.kernel"
# On a barrier that keeps IREE from running the stub of a kernel when it compiles.
HELD = "pyc.held"
