"""The benchmarks' peers: each computes the workloads that PyC is measured on."""

import numpy as np
import pytest
from conftest import sample

from pyc_mlir.tools.bench.peers import rounds
from pyc_mlir.tools.bench.peers.onnxruntime_session import peak_bytes
from pyc_mlir.tools.bench.peers.prepared import relative_error
from pyc_mlir.tools.bench.peers.systems import SYSTEMS, SystemTask
from pyc_mlir.tools.bench.peers.translators import onnx_model, torch_module
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.suites.memory import temporary_memory, xla_function
from pyc_mlir.tools.bench.workloads.cpu import ROWS
from pyc_mlir.tools.bench.workloads.cpu import make as make_row
from pyc_mlir.tools.bench.workloads.memory import WORKLOADS, make

MLP = "mlp 784-512-512-10, batch 64"
FUNCTIONS = [name for name in WORKLOADS if callable(make(name, quick=True).source)]


def close(workload: Workload, got: list[np.ndarray]) -> bool:
    return relative_error(got, workload.expected) < 1e-5


@pytest.mark.parametrize("name", sorted(ROWS))
def test_onnx_models_compute_the_workload(name):
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    workload = make_row(name, tiny=True)
    session = ort.InferenceSession(onnx_model(workload.graph()))
    feeds = {f"x{i}": a for i, a in enumerate(workload.arrays)}
    assert close(workload, session.run(None, feeds))


def test_onnxruntimes_arena_holds_the_result(tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    workload = make_row("gemm 512", tiny=True)
    path = tmp_path / "gemm.onnx"
    path.write_bytes(onnx_model(workload.graph()))
    found = peak_bytes(path, workload.inputs, 1)
    assert 4 * sum(a.size for a in workload.expected) <= found < 1 << 20


@pytest.mark.parametrize("name", sorted(ROWS))
def test_torch_modules_compute_the_workload(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    workload = make_row(name, tiny=True)
    module = torch_module(workload.graph())
    with torch.inference_mode():
        got = module(*(torch.from_numpy(a) for a in workload.inputs))
    assert close(workload, [r.numpy() for r in got])


def test_torch_takes_product_and_bias_as_one_call():
    pytest.importorskip("torch", reason="torch is not installed")
    nodes = torch_module(make_row(MLP, True).graph()).graph.nodes
    calls = [n.target.__name__ for n in nodes if n.op == "call_function"]
    assert calls == ["addmm", "relu", "addmm"]


def test_jax_computes_a_latency_workload(tmp_path):
    pytest.importorskip("jax", reason="jax is not installed")
    workload = make_row("gpt block, decode 1, cache 128", tiny=True)
    rounds.store(workload, tmp_path)
    task = SystemTask(workload.name, tmp_path, 1, True)
    (prepared,) = dict(SYSTEMS["jax"].settings(task, workload.inputs)).values()
    assert close(workload, list(prepared.results()))


@pytest.mark.parametrize("name", sample(FUNCTIONS, 4))
def test_jax_computes_a_memory_workload(name):
    pytest.importorskip("jax", reason="jax is not installed")
    workload = make(name, quick=True)
    function, constants = xla_function(workload)
    assert close(workload, [np.asarray(r) for r in function(workload.arrays, constants)])


def test_xla_reports_its_temporary_memory():
    pytest.importorskip("jax", reason="jax is not installed")
    found = temporary_memory(make("digits cnn", quick=True))
    assert found is not None and min(found) > 0
