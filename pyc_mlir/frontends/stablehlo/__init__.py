"""StableHLO modules as pyc programs: text, and the portable artifacts of `jax.export`."""
