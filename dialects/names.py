"""Names that PyC writes into programs and reads back: ids of ops in locations, symbols of kernels.

An op's id is ``<op>.<hash>`` (`dialects/ir/ids.py`). In a location it stands as ``"pyc:<id>"``, in
IREE's diagnostics as a file of that name: ``pyc:<id>:1:1``. Nothing here needs the MLIR bindings.
"""

import re

_IN_TEXT = re.compile(r'"pyc:([^"]+)"|\bpyc:([^":\s]+):1:1\b')
_SOURCE = re.compile(r'"pyc:[^"]+"\((.+)\)\)$')
_NAME = re.compile(r'(?:loc\(|fused\[|callsite\()"((?:[^"\\]|\\.)*)"[](), ]')
_OP = re.compile(r"[a-z]\w*\.[0-9a-f]+")
_KERNEL = re.compile(r"pyc_(\w+)_\d+_*")


def place_of(op_id: str) -> str:
    """Return the name by which a location refers to an op."""
    return f"pyc:{op_id}"


def ids_in(text: str) -> tuple[str, ...]:
    """Return the ids that a printed location or a diagnostic refers to, in order, each once."""
    return tuple(dict.fromkeys(found[1] or found[2] for found in _IN_TEXT.finditer(text)))


def name_in(location: str) -> str:
    """Return the first name in a printed location, as ``loc("layer7/relu")`` has; "" for none."""
    found = _NAME.search(location)
    return found[1] if found else ""


def source_in(location: str) -> str | None:
    """Return the location that an id's name holds; None where it holds none but the id's own."""
    found = _SOURCE.search(location)
    return found[1] if found and "pyc:" not in found[1] else None


def is_op_id(text: str) -> bool:
    """Return whether a text is the id of one op, not of a program."""
    return _OP.fullmatch(text) is not None


def op_name(op_id: str) -> str:
    """Return the name of the op that an id belongs to."""
    return op_id.partition(".")[0]


def kernel_symbol(family: str, number: int) -> str:
    """Return the symbol of a generated kernel; a name that is taken gets underscores behind it."""
    return f"pyc_{family}_{number}"


def kernel_family(symbol: str) -> str | None:
    """Return the family of a generated kernel by its symbol; None for IREE's own code."""
    found = _KERNEL.fullmatch(symbol)
    return found[1] if found else None
