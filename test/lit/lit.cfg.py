"""How lit runs the .mlir tests: RUN lines through lit's own shell, tools from this environment."""

import os
import sys

import lit.formats

config.name = "PyC"  # noqa: F821  (lit defines `config`)
config.test_format = lit.formats.ShTest()  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.excludes = ["Inputs"]  # noqa: F821
config.test_source_root = os.path.dirname(__file__)  # noqa: F821
config.test_exec_root = os.path.join(os.path.dirname(__file__), "..", "..", "build", "lit")  # noqa: F821
config.environment["PATH"] = os.pathsep.join(  # noqa: F821
    [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
)
config.environment["PYC_CACHE"] = "0"  # noqa: F821
config.environment["PYC_CHECK"] = "0"  # noqa: F821
config.environment["PYC_VERIFY_IR"] = "1"  # noqa: F821
config.substitutions.append(("%python", sys.executable))  # noqa: F821
