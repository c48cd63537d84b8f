"""What does a compile depend on? A key names every part in clear; its SHA-256 names the entry.

    program   the graph, its constants, the sizes that dynamic dimensions are given (`program.py`)
    options   every field of `Options`: target, contract, policy, recipe, modes, kernels, flags
    evidence  the hash of each calibration
    built by  versions of PyC (with a hash of its source) and of the packages that it compiles with
    host      the CPU that compiles: it folds constants, and is the target where that is `cpu`

Whatever cannot be named by its content is refused with `Unkeyed`; such a compile goes past the
cache, with that reason.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pyc_mlir.cache.identity import Identity, plugin_kernels, policy_part
from pyc_mlir.cache.parts import SCHEMA_VERSION, Key, as_data
from pyc_mlir.cache.unkeyed import Unkeyed
from pyc_mlir.compilation.options import HIGH_LEVEL, NO_KERNELS, Options
from pyc_mlir.iree.flags import reaches_out


def make_key(program: Mapping[str, Any], options: Options, identity: Identity) -> Key:
    """The key of a compile. Raises Unkeyed for options that no content can name."""
    if options.dump_phases is not None:
        raise Unkeyed("dump_phases asks for files that only a compile writes")
    if options.passes != HIGH_LEVEL:
        raise Unkeyed("the passes are not PyC's own pipeline")
    outward = [f for f in (*options.target.flags, *options.iree_flags) if reaches_out(f)]
    if outward:
        name = outward[0].partition("=")[0]
        raise Unkeyed(f"the IREE flag `{name}` reads or writes more than the program")
    calibration = options.calibration
    plugins = {} if options.kernels == NO_KERNELS else plugin_kernels()
    parts = {
        "schema": SCHEMA_VERSION,
        "program": dict(program),
        "options": {
            **{f.name: getattr(options, f.name) for f in fields(Options)},
            "policy": policy_part(options.policy),
        },
        "evidence": {} if calibration is None else {calibration.name: calibration.hash},
        "built_by": {**identity.versions, "pyc_source": identity.source, "kernels": plugins},
        "host": identity.host,
    }
    for name in ("calibration", "dump_phases"):
        del parts["options"][name]
    return Key(as_data(parts, "key"))
