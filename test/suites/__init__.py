"""Suites of pyc-bench for a checkout: faults, soaks, attacks, contests with public data."""
