"""The name of the attribute by which a kernel is attached to an op, and declared in a module."""

ATTRIBUTE = "pyc.kernel"
