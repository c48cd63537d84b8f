"""Measurement of this CPU's figures, for `pyc-doctor --calibrate`."""
