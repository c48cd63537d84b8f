"""Measured on the device: a program of PyC never needs more than plain IREE's, and says the same.

The peak counts what one call allocates: the arena or transients, and fresh outputs.
"""

from random import Random

import pytest
from conftest import FULL
from random_ops import draw_graph
from stream_programs import bits

from pyc_mlir.compilation.attempts import finish
from pyc_mlir.compilation.build import SETTINGS
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.bench.workloads.parts import TINY, encoder_block, encoder_weights
from pyc_mlir.tools.demo.digits import MODELS, load_digits

OPS = 24


def peaks(lowered: Lowered, inputs: list) -> tuple[list[bytes], int, list[bytes], int]:
    """The results' bits and the peak of one call: of PyC's program, then of plain IREE's."""
    options = make_options()
    artifact = finish(lowered, options)
    fusion = [d.chosen for d in artifact.decisions if d.site.pass_name == "iree-fusion"]
    vmfb = compile_module(lowered.code, options.target, extra_flags=SETTINGS[fusion[0]])
    types = [ResultType(o.dtype, o.static_shape) for o in lowered.signature.outputs]
    found = []
    for which in ("pyc", "iree"):
        device = Device("local-sync")
        arrays = [to_device(a, device) for a in inputs]
        program = Program(artifact, device)
        entry = Executable(vmfb, device).entry(lowered.entry, types)
        before = device.memory().live_bytes
        results = program(*arrays) if which == "pyc" else tuple(entry(arrays))
        found += [bits(results), device.memory().peak_bytes - before]
    ours, peak, theirs, plain = found
    return ours, peak, theirs, plain


def check(lowered: Lowered, inputs: list) -> None:
    ours, peak, theirs, plain = peaks(lowered, inputs)
    assert ours == theirs
    assert peak <= plain


@pytest.mark.parametrize("seed", range(200) if FULL else (0, 1, 3))
def test_random_graphs(seed):
    graph = draw_graph(Random(seed), dynamic=seed % 4 == 3, ops=OPS)
    with new_context(), ir.Location.unknown():
        lowered = lower(Job.of(graph.module(), None, make_options()))
    check(lowered, graph.inputs)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.full
def test_demo_models(name):
    _, images = load_digits()
    pixels = images.pixels[:64]
    check(lower(Job.of(MODELS[name], [pixels], make_options())), [pixels])


@pytest.mark.full
def test_an_encoder_block():
    block = encoder_block(TINY, encoder_weights(TINY))
    x = load_digits()[1].pixels.reshape(-1)[: TINY.seq * TINY.width]
    x = x.reshape(TINY.seq, TINY.width)
    check(lower(Job.of(block, [x], make_options())), [x])
