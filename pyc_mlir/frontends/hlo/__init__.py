"""XLA's operations on pyc builders: what jaxprs and StableHLO have in common."""
