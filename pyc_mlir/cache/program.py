"""The identity of a program: a pyc module as digests of its graph and of its constants.

The graph is the module's text without locations, in which constants above a kilobyte, MLIR
resources, are numbered in the order in which they stand; constants are digested by their bytes.
Names of arguments and dimensions stand in the graph: the artifact's signature has them.
"""

import hashlib
import re
from typing import Any

import numpy as np

from pyc_mlir.cache.files import sha256, tree_digest
from pyc_mlir.cache.key import Unkeyed
from pyc_mlir.cache.store import NAMES
from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import as_resource, resource_array, resource_key
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.frontends.sources import Loaded

_RESOURCE = re.compile(r'dense_resource<("[^"]*"|[^>]+)>')


def program_part(source: Loaded) -> dict[str, Any]:
    """Return the program's part of a key. Raises Unkeyed for constants that cannot be read."""
    if source.module is None:
        return {"enters": "iree", "graph": sha256(source.foreign), "constants": "", NAMES: "none"}
    names = source.module.operation.get_asm(enable_debug_info=True, large_resource_limit=0)
    return {
        "enters": "pyc",
        **module_digests(source.module),
        NAMES: sha256(names.partition("\n{-#")[0].encode()),
    }


def module_digests(module: ir.Module) -> dict[str, str]:
    """Return ``graph`` and ``constants`` of a module, SHA-256 in hex. Raises Unkeyed."""
    # No blob is printed: the limit of 0 characters elides each.
    text = module.operation.get_asm(enable_debug_info=False, large_resource_limit=0)
    order: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"dense_resource<#{order.setdefault(match[1].strip(chr(34)), len(order))}>"

    graph = _RESOURCE.sub(numbered, text.partition("\n{-#")[0])
    if foreign := [name for name in _foreign_ops() if f'"pyc.{name}"' in graph]:
        raise Unkeyed(f"the op pyc.{foreign[0]} is defined outside of PyC, and code has no name")
    blobs = _resources(module)
    unknown = sorted(set(order) ^ set(blobs))
    if unknown:
        raise Unkeyed(f"the constant `{unknown[0]}` stands where it cannot be read")
    digest = hashlib.sha256()
    for name in order:
        digest.update(f"{name} {blobs[name]}\n".encode())
    return {"graph": sha256(graph.encode()), "constants": digest.hexdigest()}


def _foreign_ops() -> list[str]:
    """Return the ops whose meaning is not in PyC's own source."""
    return sorted(n for n, d in OPS.items() if not d.__module__.startswith("pyc_mlir."))


def _resources(module: ir.Module) -> dict[str, str]:
    """Return the digest of each resource that an op has as an attribute. Raises Unkeyed."""
    found: dict[str, str] = {}

    def visit(op: ir.Operation) -> ir.WalkResult:
        for name in op.attributes:
            attribute = op.attributes[name if isinstance(name, str) else name.name]
            resource = as_resource(attribute)
            if resource is not None and (key := resource_key(resource)) not in found:
                found[key] = _digest(resource)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _digest(resource: ir.DenseResourceElementsAttr) -> str:
    try:
        array = resource_array(resource).reshape(-1)
    except (VerificationError, TypeError) as error:
        raise Unkeyed(f"a constant cannot be read: {error}") from None
    return tree_digest(array.view(np.uint8).data)
