"""When this process began."""

import os
import time
from pathlib import Path


def process_start(proc: Path = Path("/proc")) -> float:
    """Unix time at which this process began, where Linux tells; else now."""
    now = time.time()
    try:
        # Clock ticks since the machine was started; the command before it may hold anything.
        ticks = int((proc / "self" / "stat").read_text().rpartition(")")[2].split()[19])
        since = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - since
