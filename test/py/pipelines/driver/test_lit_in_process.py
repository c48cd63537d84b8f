"""The simple RUN lines of test/lit, in this process; `lit test/lit` runs all of them."""

import opt_harness
import pytest


@pytest.mark.parametrize("line", opt_harness.discover(), ids=str)
def test_run_line(line: opt_harness.RunLine) -> None:
    line.check()
