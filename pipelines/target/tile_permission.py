"""The permission to use tile registers (AMX), which a process asks Linux for."""

import ctypes
import functools
import platform
import sys

# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA); the libraries have no function for it.
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def may_use_tiles() -> bool:
    """Ask Linux for tile registers (AMX), for this process and all of its threads, once.

    Without the permission the system ends a process at its first instruction on tiles.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0
    except (OSError, AttributeError):
        return False
