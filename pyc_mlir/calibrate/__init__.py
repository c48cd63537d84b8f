"""Measuring what this CPU can do, for `pyc-doctor --calibrate`."""
