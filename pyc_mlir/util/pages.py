"""Large host memory on large pages, where the system lets programs ask for them.

With pages of 4 KiB a core that streams weights or results spends much of its time on the addresses:
a product of one row by 64 MiB of weights takes 1.5 times as long. Linux gives pages of 2 MiB where
it is asked (`madvise(2)`, MADV_HUGEPAGE); numpy asks for its own arrays too. It is advice: where it
is not taken, nothing changes but speed.
"""

import ctypes
import mmap
import os
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.util.files import open_plain

# Below one large page there is nothing to gain.
LARGE_BYTES = 2 << 20
_LINE = 64


def advise_large(address: int, size: int) -> None:
    """Ask for large pages for `size` bytes of this process, before they are written first."""
    advise = _madvise()
    if advise is None:
        return
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        advise(first, end - first, mmap.MADV_HUGEPAGE)


def in_own_memory(content: bytes | memoryview) -> Any:
    """Return a copy of `content` with Python's buffer protocol that starts a cache line.

    On large pages if it is large; as it is if it is there already.
    """
    if len(content) < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = np.empty(len(content) + _LINE, np.uint8)
        start = -memory.ctypes.data % _LINE
        memory = memory[start : start + len(content)]
        memory[:] = np.asarray(memoryview(content))
        return memory
    if isinstance(content, memoryview) and isinstance(content.obj, mmap.mmap):
        return content
    memory = _large(len(content))
    memory[:] = content
    return memory


def read_on_large_pages(file: FileIO, size: int) -> bytes | memoryview:
    """Return the rest of an open file, of `size` bytes or fewer; large ones can be written to.

    Raises OSError.
    """
    if size < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return file.read()
    memory = memoryview(_large(size))
    done = 0
    while done < size and (count := file.readinto(memory[done:])):
        done += count
    return memory[:done]


def read_file_large(path: Path) -> bytes | memoryview:
    """Return a file's content, as `read_on_large_pages` has it. Raises OSError."""
    with open_plain(path) as file:
        return read_on_large_pages(file, os.fstat(file.fileno()).st_size)


def _large(size: int) -> mmap.mmap:
    # Linux gives shared memory, which is Python's default, no large pages however it is asked.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise_large(ctypes.addressof(ctypes.c_char.from_buffer(memory)), size)
    return memory


@cache
def _madvise() -> Any:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
