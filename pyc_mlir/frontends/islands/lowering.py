"""Lower a model of one ONNX node to linalg, in a process of its own: torch-mlir may abort.

    text = to_linalg(model_bytes)       # one func.func on tensors

The process is this module run with two paths: it reads the model from the first one and writes the
text to the second one. A node that torch-mlir refuses ends it with status `_REFUSED`.
"""

import os
import signal
import sys
from collections.abc import Sequence
from functools import lru_cache

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, onnx_importer, passmanager, torch_dialect
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.util import children

_PIPELINE = (
    "builtin.module(torch-onnx-to-torch-backend-pipeline,"
    "torch-backend-to-linalg-on-tensors-backend-pipeline)"
)
_REFUSED = 3
_WHY_CHARACTERS = 300
# Models of one node often come again: the same layer of a network.
_KEPT = 256
_BOOT = "from pyc_mlir.frontends.islands.lowering import main; sys.exit(main(sys.argv[1:]))"


@lru_cache(maxsize=_KEPT)
def to_linalg(model: bytes) -> str:
    """Return the text of a module on tensors that computes a serialized model of one node.

    Raises PycError: UNSUPPORTED_OP for a node that torch-mlir does not lower, NATIVE_CRASH if the
    process ends otherwise.
    """
    with children.temporary_folder("pyc-island-") as folder:
        source, result = folder / "node.onnx", folder / "node.mlir"
        write_file(source, model)
        ended = children.run(children.python_command(_BOOT, str(source), str(result)))
        if ended.returncode == 0:
            return read_file(result).decode()
    said = (ended.stderr or "").strip()
    if ended.returncode == _REFUSED:
        why = f"torch-mlir does not lower it: {said[:_WHY_CHARACTERS]}"
        raise PycError(ReasonCode.UNSUPPORTED_OP, why)
    raise PycError(
        ReasonCode.NATIVE_CRASH,
        "expected torch-mlir to lower the node or to refuse it, got a process that ended by "
        f"{_ending(ended.returncode)}; compile without the option `islands`; its last words: "
        f"{said[-_WHY_CHARACTERS:]}",
    )


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def main(arguments: Sequence[str]) -> int:
    """Lower the model at one path to text at another; `_REFUSED`, with the reason, if it cannot."""
    import onnx

    source, result = arguments
    try:
        text = _lowered(onnx.load(source))
    # The process boundary: whatever the importer or the passes raise is the reason.
    except Exception as error:  # noqa: BLE001
        print(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)
        return _REFUSED
    write_file(result, text.encode())
    # Without native destructors, which have nothing left to do.
    sys.stderr.flush()
    os._exit(0)


def _lowered(model: "onnx.ModelProto") -> str:  # type: ignore[name-defined]  # noqa: F821
    with ir.Context() as context:
        torch_dialect.register_dialect(context)
        info = onnx_importer.ModelInfo(model)
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        module.verify()
        passmanager.PassManager.parse(_PIPELINE).run(module)
        return module.get_asm()
