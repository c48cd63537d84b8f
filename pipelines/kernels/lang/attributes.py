"""The names of attributes by which kernels are attached to ops, declared, and held."""

ATTRIBUTE = "pyc.kernel"
# On a barrier that keeps IREE from running the stub of a kernel when it compiles.
HELD = "pyc.held"
