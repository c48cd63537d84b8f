"""Products of bytes on this machine's own instructions, which no named level has."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import FULL
from family_checks import cases, check
from kernel_runs import DTYPES, assembly

from pyc_mlir.compilation.options import make_options
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.measure.dispatch_timer import TimerSettings, time_calls
from pyc_mlir.pipelines.kernels.families.bytes import AMX, VNNI, TileWindow, has_dot
from pyc_mlir.pipelines.kernels.families.conv.bytes import ByteConv
from pyc_mlir.pipelines.kernels.families.window import ConvAxis
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.target.target import CpuInfo, Target
from pyc_mlir.runtime import device
from pyc_mlir.runtime.device import host_cpu

FAMILY = FAMILIES["int8"]
KERNELS = 170 if FULL else 12
TILES = Target.named("cpu").on(
    CpuInfo(
        frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "amx_tile", "amx_int8"}), 1
    )
)
SAME = ConvAxis(14, 3, 1, 1, 1)
FIRST = ConvAxis(224, 7, 2, 3, 3)
APART = replace(SAME, low=2, high=2, dilation=2)


def host(form):
    cpu = host_cpu()
    target = Target.named("cpu") if cpu is None else Target.named("cpu").on(cpu)
    if not has_dot(target, form):
        pytest.skip(f"this CPU, or this process, has no {form}")
    return target


@pytest.mark.parametrize("form", [AMX, VNNI])
def test_random_kernels_equal_sums_of_integers(form):
    target = host(form)
    if form != AMX:
        target = replace(target, features={f for f in target.features if not f.startswith("amx")})
    drawn = cases("int8", target, 3, 4 * KERNELS)
    found = [case for case in drawn if case.knobs.form == form][:KERNELS]
    assert found
    check(target, found)


def test_the_code_is_that_of_tiles(tmp_path):
    target = host(AMX)
    knobs = ByteConv.for_bytes(target, 1, (SAME, SAME), 64, 64, form=AMX, signed=True)
    text = assembly(target, [knobs.kernel("k")], tmp_path)
    assert all(name in text for name in ("ldtilecfg", "tdpbssd", "tilestored", "tilerelease"))


@pytest.mark.parametrize(
    "axes,channels,runs,chunk,starts",
    [
        ((ConvAxis(1), ConvAxis(49)), 64, (1, 64), 64, [0]),
        ((ConvAxis(1), ConvAxis(49)), 96, (1, 96), 48, [0, 48]),
        # The last chunk overlaps that before: no byte beyond the matrix is read.
        ((ConvAxis(1), ConvAxis(49)), 11, (1, 11), 8, [0, 3]),
        ((SAME, SAME), 64, (3, 192), 64, [0, 64, 128]),
        # A copy has bytes to spare.
        ((FIRST, FIRST), 3, (7, 21), 24, [0]),
        ((APART, APART), 32, (9, 32), 32, [0]),
    ],
)
def test_bytes_under_taps_fill_rows_of_tiles(axes, channels, runs, chunk, starts):
    rows, columns = axes
    window = TileWindow(rows, columns, channels)
    assert (window.runs, window.chunk, window.starts) == (runs, chunk, starts)


def test_tiles_are_evenly_cut():
    heights = {n: TileWindow(ConvAxis(n), ConvAxis(n), 64).height for n in (7, 14, 28, 30, 56, 112)}
    assert heights == {7: 7, 14: 14, 28: 14, 30: 15, 56: 14, 112: 16}


def test_few_pixels_stay_with_vectors():
    def form(pixels):
        axes = (ConvAxis(1), ConvAxis(pixels))
        made = [
            ByteConv.for_bytes(TILES, 1, axes, 512, 1000, form=form, result="i32")
            for form in (VNNI, AMX)
        ]
        return min(made, key=lambda knobs: FAMILY.cost(knobs, TILES, {}).seconds).form

    assert (form(1), form(128)) == (VNNI, AMX)


def test_a_level_has_no_tiles():
    for name in ("cpu-avx2", "cpu-avx512"):
        assert not has_dot(make_options(target=name).target, AMX)


def test_a_process_that_may_not_use_tiles_has_none(monkeypatch):
    cpu = host_cpu()
    if cpu is None or "amx_tile" not in cpu.features:
        pytest.skip("no tiles here")
    monkeypatch.setattr(device, "may_use_tiles", lambda: False)
    refused = device.host_cpu.__wrapped__()
    assert refused is not None
    assert cpu.features - refused.features == {f for f in cpu.features if f.startswith("amx_")}
    assert not has_dot(Target.named("cpu").on(refused), AMX)


def test_a_profile_times_tiles():
    """IREE's tools, which do not ask for tiles, run programs that need them."""
    target = host(AMX)
    knobs = ByteConv.for_bytes(target, 1, (SAME, SAME), 64, 64, form=AMX, result="i32")
    carrier, kernel = Carrier(target), knobs.kernel("main")
    carrier.add(kernel)
    carrier.call(kernel)
    code = compile_module(carrier.bytecode(), target)
    sizes = [[d for d in o.shape if isinstance(d, int)] for o in kernel.inputs]
    kinds = [DTYPES[o.dtype] for o in kernel.inputs]
    arrays = [np.ones(size, kind) for size, kind in zip(sizes, kinds, strict=True)]
    calls = time_calls(code, "main", arrays, TimerSettings(calls=2))
    assert [len(call.spans) for call in calls] == [1, 1]
