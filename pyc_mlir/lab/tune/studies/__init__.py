"""Studies: leased trials of choices, measured by workers, kept in the benchmark database."""
