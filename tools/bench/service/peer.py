"""onnxruntime behind the HTTP stack of `pyc-serve`: the same application, another call.

python -m pyc_mlir.tools.bench.service.peer MODEL.onnx WORKERS BATCH SIGNATURE.json QUEUE
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.serve.app import application
from pyc_mlir.serve.limits import Limits
from pyc_mlir.serve.models import Endpoint
from pyc_mlir.serve.rows import most_rows


def session(path: str) -> Callable[..., Any]:
    """Return a session with one thread for each call, as a function of arrays."""
    import onnxruntime as ort  # pyright: ignore[reportMissingImports]

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    made = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in made.get_inputs()]
    return lambda *arrays: made.run(None, dict(zip(names, arrays, strict=True)))


class Peer(Endpoint):
    """A session as a model of the server, which is always ready."""

    is_ready = True


def main(arguments: Sequence[str]) -> int:
    """Serve until a signal comes; print the address first."""
    import socket

    import uvicorn

    path, workers, batch, signature, queue = arguments
    known = from_data(Signature, json.loads(Path(signature).read_text()))
    name = Path(path).stem
    call = session(path)
    most = most_rows(call, known)[0] if batch == "1" else 0
    model = Peer(name, call, known, int(workers), int(queue), most)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    models: Any = {name: model}
    config = uvicorn.Config(application(models, Limits()), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
