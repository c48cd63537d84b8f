"""CPU features that compiled code may use, under LLVM's names and under Linux's.

LLVM, told to compile for the host, takes all that the host has; a program is refused where one of
them is lacking (`load_checked`), since the CPU would end the process at the first such instruction.
"""

import ctypes
import functools
import platform
import sys
from collections.abc import Iterable, Mapping

# LLVM's names of what it generates code with by itself, and those of /proc/cpuinfo. What only the
# system or explicit intrinsics use is left out (xsave, rdrand), as is what Linux does not name.
_X86: Mapping[str, str] = {
    **{name: name for name in ("adx", "aes", "avx", "avx2", "bmi2", "cx16", "f16c", "fma", "fma4")},
    **{name: name for name in ("gfni", "movbe", "movdir64b", "movdiri", "popcnt", "sha512", "sm3")},
    **{name: name for name in ("sm4", "sse4a", "ssse3", "tbm", "vaes", "vpclmulqdq", "xop")},
    **{f"avx512{name}": f"avx512{name}" for name in ("bw", "cd", "dq", "er", "f", "ifma", "pf")},
    **{f"avx512{name}": f"avx512{name}" for name in ("vbmi", "vl")},
    **{f"avx512{name}": f"avx512_{name}" for name in ("bf16", "bitalg", "fp16", "vbmi2", "vnni")},
    **{f"avx512{name}": f"avx512_{name}" for name in ("vp2intersect", "vpopcntdq")},
    **{f"amx-{name}": f"amx_{name}" for name in ("bf16", "complex", "fp16", "int8", "tile")},
    "avxifma": "avx_ifma",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sahf": "lahf_lm",
    "sha": "sha_ni",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}
_ARM: Mapping[str, str] = {
    **{name: name for name in ("aes", "bf16", "flagm", "i8mm", "sha2", "sha3", "sme", "sme2")},
    **{name: name for name in ("sm3", "sm4", "sve", "sve2")},
    "complxnum": "fcma",
    "crc": "crc32",
    "dotprod": "asimddp",
    "f32mm": "svef32mm",
    "f64mm": "svef64mm",
    "fp16fml": "asimdfhm",
    "fptoint": "frint",
    "fullfp16": "asimdhp",
    "jsconv": "jscvt",
    "lse": "atomics",
    "neon": "asimd",
    "rcpc": "lrcpc",
    "rcpc-immo": "ilrcpc",
    "rdm": "asimdrdm",
}
# A process has to ask Linux before it may use these (runtime/device.py).
TILE_FEATURES = frozenset(name for name in _X86.values() if name.startswith("amx_"))
LINUX_NAMES: Mapping[str, str] = {**_X86, **_ARM}


def used_in_code(features: Iterable[str]) -> frozenset[str]:
    """Return those of a CPU's features (Linux's names) that code compiled for it may use."""
    return frozenset(features) & frozenset(LINUX_NAMES.values())


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
