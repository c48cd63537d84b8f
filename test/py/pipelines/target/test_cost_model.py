"""The cost model: one method a question, constants with an origin, calibrated where asked."""

from dataclasses import replace

import numpy as np
import pytest

from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.kernels.families.rows import Rows
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.target.cost_constants import CONSTANTS, constant
from pyc_mlir.pipelines.target.cost_model import CostModel, totals
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp

CPU = Target.named("cpu-avx512")
MIB = 1 << 20


def softmax(rows: int, columns: int) -> Work:
    kind = TensorType((rows, columns), np.dtype(np.float32))
    return Work((Input(kind),), (WorkOp("softmax", (0,), {"axis": -1}, kind),))


def test_every_constant_is_positive_and_says_where_it_is_from():
    assert all(row.value > 0 and row.origin for row in CONSTANTS.values())


def test_a_constant_without_a_row_is_its_parents():
    assert constant("kernel.of_a_plugin") == constant("kernel")
    assert constant("iree.op.exp") == constant("iree.op")
    with pytest.raises(AssertionError):
        constant("nothing")


def test_arithmetic_or_traffic_whichever_takes_longer():
    model = CostModel(CPU).on(1)
    peak = constant("published.flops") * CPU.peak_flops / CPU.cores
    computing = model.kernel("gemm", 1e9, 8)
    assert computing.seconds == pytest.approx(1e9 / (peak * constant("kernel.gemm")))
    moving = model.kernel("gemm", 1, 1 << 30)
    assert moving.seconds == pytest.approx((1 << 30) / model.bandwidth)
    assert (moving.traffic_bytes, moving.flops) == (1 << 30, 1)


def test_caches_are_faster_than_memory():
    model = CostModel(CPU)
    rates = [n / model.moving(n) for n in (CPU.l2_bytes, CPU.l3_bytes, 2 * CPU.l3_bytes)]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 3
    assert model.copy(MIB).seconds == model.moving(MIB)


def test_large_work_is_shared_by_the_cores_of_a_call():
    model = CostModel(CPU)
    alone, shared = (model.on(n).kernel("gemm", 1e9, 8).seconds for n in (1, 2))
    assert alone == pytest.approx(2 * shared)
    small = [model.on(n).kernel("gemm", 1e3, 8).seconds for n in (1, 2)]
    assert small[0] == small[1]


def test_work_of_a_few_microseconds_is_shared():
    model, core = CostModel(CPU), CPU.peak_flops / CPU.cores
    for seconds, cores in ((1e-6, 1), (2e-6, CPU.cores)):
        assert model.cores_for(seconds * core, 0.0) == cores
        assert model.cores_for(0.0, seconds * CPU.peak_bandwidth) == cores


def test_softmax_counts_the_same_operations_as_kernel_and_as_op():
    knobs = Rows("softmax", rows=64, columns=1000)
    flops, _ = totals(softmax(64, 1000))
    assert FAMILIES["rows"].cost(knobs, CPU, {}).flops == flops > 0


@pytest.mark.parametrize(("rows", "taken"), [(8192, 32), (8, 32)])
def test_a_gather_reads_what_it_takes_of_a_table(rows: int, taken: int):
    table = TensorType((rows, 768), np.dtype(np.float32))
    indices = TensorType((1, taken), np.dtype(np.int64))
    out = TensorType((1, taken, 768), np.dtype(np.float32))
    work = Work((Input(table), Input(indices)), (WorkOp("gather", (0, 1), {"axis": 0}, out),))
    _, traffic = totals(work)
    most = out.nbytes + min(table.nbytes, out.nbytes + indices.nbytes) + indices.nbytes
    assert 2 * min(table.nbytes, out.nbytes) <= traffic <= most


def test_irees_code_is_slower_than_the_kernel_by_its_row():
    model, work = CostModel(CPU), softmax(64, 1000)
    kernel = model.kernel("rows", *totals(work))
    assert model.work(work).seconds == pytest.approx(kernel.seconds / constant("iree.op.softmax"))
    assert model.work(work, 1).seconds == 0


def test_measured_peaks_are_taken_as_they_are():
    measured = replace(CPU, calibrated_by="lab@0123", dispatch_seconds=2e-6)
    model = CostModel(measured)
    assert model.core_flops == CPU.peak_flops / CPU.cores
    assert (model.bandwidth, model.dispatch_seconds) == (CPU.peak_bandwidth, 2e-6)
    assert model.basis == "calibration lab@0123"
    assert CostModel(CPU).basis == "published figures of `cpu-avx512`"


def test_parts_that_occupy_few_cores_compute_more_slowly():
    model = CostModel(CPU)
    many = constant("chunk.tile") * CPU.cores
    assert model.part(1e6, 0, many / 2, 0) == pytest.approx(2 * model.part(1e6, 0, many, 0))
    assert model.part(0, 0, 1, 2) == pytest.approx(2 * constant("chunk.dispatch_seconds"))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.full
def test_convolutions_are_predicted_by_window_and_stride(layout: str):
    def seconds(window: int, stride: int) -> float:
        kind = np.dtype(np.float32)
        shapes = [(1, 64, 56, 56), (64, 64, window, window), (1, 64, 28, 28)]
        if layout == "NHWC":
            shapes = [(1, 56, 56, 64), (window, window, 64, 64), (1, 28, 28, 64)]
        x, weight, out = (TensorType(shape, kind) for shape in shapes)
        params = {"strides": (stride, stride), "layout": layout, "groups": 1}
        node = WorkOp("conv2d", (0, 1), params, out)
        return CostModel(CPU).work(Work((Input(x), Input(weight)), (node,))).seconds

    ratio = constant("iree.convolution") / constant("iree.convolution.strided")
    assert seconds(3, 2) == pytest.approx(ratio * seconds(3, 1))
    ratio = constant("iree.contraction") / constant("iree.strided")
    assert seconds(1, 2) == pytest.approx(ratio * seconds(1, 1))
