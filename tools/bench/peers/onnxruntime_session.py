"""onnxruntime on CPUs: an ONNX model under each of its settings that may be the quickest."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.tools.bench.peers.prepared import Named, PreparedWorkload

# onnxruntime's workers spin for 50 ms after a call, unless told to stop or not to spin at all.
_SPINNING = {
    "spinning": {},
    "spinning in calls": {"session.force_spinning_stop": "1"},
    "no spinning": {"session.intra_op.allow_spinning": "0"},
}


def settings(model: bytes, inputs: Sequence[np.ndarray], threads: int) -> Named:
    """Return sessions with and without spinning workers. Raises ModuleNotFoundError.

    One thread has no worker that could spin.
    """
    import onnxruntime as ort  # pyright: ignore[reportMissingImports]

    spinning = _SPINNING if threads > 1 else {"one thread": {}}
    for name, entries in spinning.items():
        for how, prepared in _sessions(ort, model, inputs, threads, entries):
            yield f"{how}, {name}", prepared


def _sessions(
    ort: Any,
    model: bytes,
    inputs: Sequence[np.ndarray],
    threads: int,
    entries: Mapping[str, str],
) -> Iterator[tuple[str, PreparedWorkload]]:
    """Yield one session, called in both ways that its API has."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    yield (
        "run",
        PreparedWorkload(partial(session.run, None, feeds), partial(session.run, None, feeds)),
    )
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)

    def results() -> list[np.ndarray]:
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    yield "io binding", PreparedWorkload(partial(session.run_with_iobinding, binding), results)
