"""IREE flags that make a compile depend on more than the program and the flag's own text.

What a file holds is in no key and in no log, so a flag whose value names one leads past the
compile cache and is refused under strict determinism. IREE knows hundreds of flags, and each
release has others; so the rule is what a flag must be to stay inside. Its value is a truth, a
number or a level, or one word that IREE compares with words of its own; and its name speaks of no
file. All else counts as a file.
"""

import re

# Values that are no names: of a switch, a count, a share, a level of optimization.
_PLAIN = re.compile(r"(true|false|[-+]?\d+(\.\d*)?(e[-+]?\d+)?|0x[\da-f]+|O[0-3s])?", re.I)
_WORD = re.compile(r"[\w+,:.-]*")
# Flags whose value is one word, or several, out of a list that IREE has.
_WORDS = frozenset(
    {
        "iree-codegen-reorder-workgroups-strategy",
        "iree-cuda-target",
        "iree-cuda-target-features",
        "iree-dispatch-creation-set-encoding-strategy",
        "iree-execution-model",
        "iree-global-opt-set-encoding-strategy",
        "iree-hal-local-target-device-backends",
        "iree-hal-target-backends",
        "iree-hal-target-device",
        "iree-input-type",
        "iree-llvmcpu-enable-llvm-ukernels",
        "iree-llvmcpu-enable-ukernels",
        "iree-llvmcpu-sanitize",
        "iree-llvmcpu-target-abi",
        "iree-llvmcpu-target-cpu",
        "iree-llvmcpu-target-cpu-features",
        "iree-llvmcpu-target-float-abi",
        "iree-llvmcpu-target-triple",
        "iree-llvmcpu-vector-pproc-strategy",
        "iree-opt-level",
        "iree-rocm-target",
        "iree-rocm-target-features",
        "iree-scheduling-initialization-mode",
        "iree-stream-partitioning-favor",
        "iree-stream-resource-memory-model",
        "iree-vulkan-target",
        "iree-vulkan-target-features",
    }
)
# What names of flags say whose value is a file or a folder, however it is written.
_FILES = re.compile(
    r"file|path|-dirs?$|director|folder|librar|source$|object$|substitut|plugin|import|export|dump|"
    r"parameter|archive|manifest|bitcode|summary|replay|reproducer|listing|-base$|-def$|-with$|"
    r"-to$|-from$|-in$|-out$"
)
# Flags that print, or leave something beside the program.
_TELLS = re.compile(r"print|trace|debug|view|timing|statistic|remark|report")


def names_file(flag: str) -> bool:
    """Return whether the value of a flag may be a file or a folder that IREE reads or writes.

    What does not begin with ``-`` is the value of a flag before it.
    """
    if not flag.startswith("-"):
        return True
    name, value = _parted(flag)
    inside = _WORD if name in _WORDS else _PLAIN
    return bool(_FILES.search(name)) or not inside.fullmatch(value)


def reaches_out(flag: str) -> bool:
    """Return whether a flag reads or leaves anything but the program: files, text on a console."""
    return names_file(flag) or bool(_TELLS.search(_parted(flag)[0]))


def _parted(flag: str) -> tuple[str, str]:
    name, _, value = flag.lstrip("-").partition("=")
    return name, value
