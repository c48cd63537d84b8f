"""The key of a compile: everything that its result depends on, in clear.

`Identity` is who compiles: versions, PyC's own source, the host's CPU, policies and plugins.
The program's part is what the front end made of the source: its graph and its constants, by hash.
"""

import functools
import hashlib
import inspect
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import installed_versions
from pyc_mlir.cache.store import KEY_SCHEMA, NAMES, Key, Unkeyed, sha256, tree_digest
from pyc_mlir.compilation.options import HIGH_LEVEL, NO_KERNELS, Options
from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import as_resource, resource_array, resource_key
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.util.codec import Form, Forms, to_data
from pyc_mlir.dialects.util.plugins import registered
from pyc_mlir.frontends.sources import Loaded
from pyc_mlir.iree.flags import reaches_out
from pyc_mlir.pipelines.choices.choices import Adapted, Policy
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.kernels.registry import ENTRY_POINT_GROUP
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.util.env_overrides import env_overrides
from pyc_mlir.util.process_start import process_start
from pyc_mlir.util.source_files import SEEN, Files, source_digest, source_files

# Longer than the steps in which the system counts times of files and processes.
_DOUBT_SECONDS = 0.1
# Looking packages up takes longer than a hit may.
_versions = functools.cache(installed_versions)


@dataclass(frozen=True)
class Identity:
    """Versions by package, the hash of PyC's source, and the CPU that compiles, as plain data."""

    versions: Mapping[str, str]
    source: str
    host: Mapping[str, Any]


# What was changed after `SEEN` shows in the files, what was changed before in their times.
BEGAN = process_start()


def current_identity(
    began: float = BEGAN,
    seen: Files = SEEN,
    environment: Mapping[str, str] = os.environ,
) -> Identity:
    """Return the identity of this process.

    Raises Unkeyed when PyC's source changed after the process began: what it runs is then
    neither the old source nor the new one. And for variables of the environment that change what
    compiles.
    """
    if overrides := next(iter(env_overrides(environment)), ""):
        raise Unkeyed(f"{overrides} is set, which has other code take part than the versions name")
    newest = max(mtime for _, _, mtime in seen)
    if seen != source_files() or newest > (began - _DOUBT_SECONDS) * 1e9:
        raise Unkeyed("PyC's own source was changed since this process began, or just before")
    return Identity(_versions(), source_digest(seen), _host())


@functools.cache
def _host() -> dict[str, Any]:
    cpu = host_cpu()
    machine = platform.machine()
    if cpu is None:
        return {"machine": machine, "system": platform.system()}
    return {"machine": machine, "cpu": cpu.model, "features": " ".join(sorted(cpu.features))}


def policy_part(policy: Policy) -> dict[str, Any]:
    """Return a policy as data: its class and fields, and the version of one not PyC's own.

    Raises Unkeyed for a foreign one without `version`, and for one whose state is no plain data.
    """
    given = policy.given if isinstance(policy, Adapted) else policy
    kind = type(given)
    part: dict[str, Any] = {
        "name": policy.name,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "fields": _state(given, policy.name),
    }
    if kind.__module__.startswith("pyc_mlir."):
        return part
    version = getattr(given, "version", None)
    if not isinstance(version, str) or not version:
        raise Unkeyed(f"the policy `{policy.name}` has no `version`, and code has no other name")
    return {**part, "version": version, "source": _class_source(kind)}


def _state(policy: Any, name: str) -> dict[str, Any]:
    if is_dataclass(policy):
        return {f.name: getattr(policy, f.name) for f in fields(policy)}
    slots = [s for c in type(policy).__mro__ for s in getattr(c, "__slots__", ())]
    if slots:
        raise Unkeyed(f"the policy `{name}` keeps state in slots")
    return dict(vars(policy))


def _class_source(kind: type) -> str:
    """Return the hash of the file that defines a class. Raises Unkeyed where there is none."""
    try:
        return sha256(Path(inspect.getfile(kind)).read_bytes())
    except (OSError, TypeError):
        raise Unkeyed(f"the policy class `{kind.__qualname__}` stands in no file") from None


@functools.cache
def plugin_kernels() -> dict[str, str]:
    """Return the kernel families of other packages: ``package version`` by name.

    Raises Unkeyed for one that is installed for development: its version does not tell its code.
    """
    found = {}
    for point in registered(ENTRY_POINT_GROUP):
        package = point.dist
        if package is None or _is_editable(package):
            raise Unkeyed(f"the kernel family `{point.name}` is installed for development")
        found[point.name] = f"{package.name} {package.version} {point.value}"
    return found


def _is_editable(package: metadata.Distribution) -> bool:
    text = package.read_text("direct_url.json")
    try:
        return bool(text) and bool(json.loads(text).get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return True


def _unkeyed_path(path: PurePath) -> str:
    raise Unkeyed(f"{path} is a path, and what a file holds has no content to name")


def make_key(program: Mapping[str, Any], options: Options, identity: Identity) -> Key:
    """Make the key of a compile. Raises Unkeyed for options that no content can name."""
    if options.dump_phases is not None:
        raise Unkeyed("dump_phases asks for files that only a compile writes")
    if options.node_names:
        raise Unkeyed("node_names asks for names, which are no part of what a program is")
    if options.passes != HIGH_LEVEL:
        raise Unkeyed("the passes are not PyC's own pipeline")
    outward = [f for f in (*options.target.flags, *options.iree_flags) if reaches_out(f)]
    if outward:
        name = outward[0].partition("=")[0]
        raise Unkeyed(f"the IREE flag `{name}` reads or writes more than the program")
    calibration = options.calibration
    plugins = {} if options.kernels == NO_KERNELS else plugin_kernels()
    try:
        return Key(
            {
                "schema": KEY_SCHEMA,
                "program": dict(program),
                "options": options.data(_FORMS, ("calibration", "dump_phases", "verify_ir")),
                "evidence": {} if calibration is None else {calibration.name: calibration.hash},
                "built_by": {
                    **identity.versions,
                    "pyc_source": identity.source,
                    "kernels": plugins,
                },
                "host": dict(identity.host),
            }
        )
    except ValueError as error:
        raise Unkeyed(str(error)) from None


# Wisdom is named by its hash: a key stays as short as its text is read by people.
_FORMS: Forms = {
    PurePath: Form(_unkeyed_path, Path),
    Policy: Form(lambda policy: to_data(policy_part(policy), "policy", _FORMS), str),
    Wisdom: Form(lambda wisdom: wisdom.hash, str),
}


# The identity of a program: a pyc module as digests of its graph and of its constants.
#
# The graph is the module's text without locations, in which constants above a kilobyte, MLIR
# resources, are numbered in the order in which they stand; constants are digested by their bytes.
# Names of arguments and dimensions stand in the graph: the artifact's signature has them.

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
    others = sorted(n for n, d in OPS.items() if not d.__module__.startswith("pyc_mlir."))
    if foreign := [name for name in others if f'"pyc.{name}"' in graph]:
        raise Unkeyed(f"the op pyc.{foreign[0]} is defined outside of PyC, and code has no name")
    blobs = _resources(module)
    unknown = sorted(set(order) ^ set(blobs))
    if unknown:
        raise Unkeyed(f"the constant `{unknown[0]}` stands where it cannot be read")
    digest = hashlib.sha256()
    for name in order:
        digest.update(f"{name} {blobs[name]}\n".encode())
    return {"graph": sha256(graph.encode()), "constants": digest.hexdigest()}


def _resources(module: ir.Module) -> dict[str, str]:
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
