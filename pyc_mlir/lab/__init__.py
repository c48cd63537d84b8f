"""The laboratory: evidence, measuring sessions, simulation, exploring, tuning and lanes.

The compiler never imports it; its policies come in through the entry points `pyc.policies`.
"""
