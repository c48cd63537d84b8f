"""Parts of `pyc-tune`: looking into the benchmark database."""
