"""A library that asks Linux for tile registers, for IREE's tools (LD_PRELOAD).

The permission of a process (`pipelines/target/cpu_features.py`) ends where it starts another
program, and IREE's tools do not ask. The library is an ELF file with an initializer of five
instructions.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.measure.hardware import parse_cpuinfo, read

_CPUINFO, _TILES = Path("/proc/cpuinfo"), "amx_tile"
_VARIABLE = "LD_PRELOAD"
_NAME = "tiles.so"
_PAGE = 0x1000
# mov eax, 158 (arch_prctl); mov edi, 0x1023 (ARCH_REQ_XCOMP_PERM); mov esi, 18; syscall; ret
_CODE = bytes.fromhex("b89e000000 bf23100000 be12000000 0f05 c3")
_CODE_AT, _SYMBOL_AT = 0x200, 0x300
# ELF: the header's size and those of a segment and of a symbol.
_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _READ_WRITE, _READ_RUN = 4, 6, 5
# DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_INIT, DT_NULL
_FACTS = ((5, _SYMBOL_AT), (6, _SYMBOL_AT), (10, 1), (11, _SYMBOL), (12, _CODE_AT), (0, 0))


def library() -> bytes:
    """Return the library, an ELF file for x86-64."""
    facts = b"".join(struct.pack("<QQ", *fact) for fact in _FACTS)
    segments = (
        (_LOAD, _READ_RUN, 0, _SYMBOL_AT + _SYMBOL),
        (_LOAD, _READ_WRITE, _PAGE, len(facts)),
        (_DYNAMIC, _READ_WRITE, _PAGE, len(facts)),
        (_STACK, _READ_WRITE, 0, 0),
    )
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    # Type 3: shared; machine 62: x86-64.
    header = struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 4, 64, 0, 0
    )
    table = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, _PAGE if kind == _LOAD else 8)
        for kind, flags, at, size in segments
    )
    start = (ident + header + table).ljust(_CODE_AT, b"\0")
    return (start + _CODE).ljust(_PAGE, b"\0") + facts


def preloading(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Write the library to a folder; the environment in which a program loads it first.

    The environment as it is where the CPU has no tiles.
    """
    if _TILES not in parse_cpuinfo(read(_CPUINFO))[1]:
        return dict(environ)
    path = folder / _NAME
    write_file(path, library())
    others = environ.get(_VARIABLE, "")
    return {**environ, _VARIABLE: f"{path}:{others}" if others else str(path)}
