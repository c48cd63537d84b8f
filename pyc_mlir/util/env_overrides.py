"""Environment variables that bring other code into a compile. Needs no compiler."""

import os
from collections.abc import Mapping

# With these the compiler loads or calls other code, LLVM names another producer, or numpy takes
# other code for constants.
OVERRIDES = (
    "IREE_LOAD_PLUGINS",
    "IREE_LLVM_EMBEDDED_LINKER_PATH",
    "IREE_LLVM_SYSTEM_LINKER_PATH",
    "IREE_LLVM_WASM_LINKER_PATH",
    "LLVM_OVERRIDE_PRODUCER",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
)


def env_overrides(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that are set of those that have other code take part in a compile."""
    return {name: environment[name] for name in OVERRIDES if name in environment}
