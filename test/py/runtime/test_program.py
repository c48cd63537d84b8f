import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from faults import CHECKED
from iree import runtime as rt
from modules import add_artifact, add_program, add_text, host_target, ramp, signature

from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.target.target import TARGETS
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.bench.suites.calls import time_calls

DYNAMIC = ("n", 8)


def refused(code: ReasonCode, program: Program, *args: object) -> str:
    with pytest.raises(PycError) as caught:
        program(*args)
    assert caught.value.code is code
    return str(caught.value)


@pytest.mark.parametrize("kind", ["local-sync", "local-task"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.full
def test_dtypes(kind, dtype):
    program = add_program((2, 3), dtype, Device.default_for("local"))
    program = Program(program.artifact, Device(kind))
    a = ramp(2, 3, dtype=dtype)
    expected = a | a if dtype == "i1" else a + a
    for result in (program(a, a), program(to_device(a, program.device), a).numpy()):
        assert result.dtype == a.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
@pytest.mark.sampled(2)
def test_rank_zero_and_zero_sizes(shape):
    program = add_program(shape)
    assert program(ramp(*shape), ramp(*shape)).shape == shape
    on_device = to_device(ramp(*shape), program.device)
    np.testing.assert_array_equal(program(on_device, on_device).numpy(), ramp(*shape) * 2)


def test_non_contiguous_arguments():
    a = ramp(6, 4).T[::2]
    np.testing.assert_array_equal(add_program((2, 6))(a, a), a + a)


def test_numpy_in_numpy_out_and_writable():
    result = add_program()(ramp(4), ramp(4))
    assert type(result) is np.ndarray
    result[0] = 5


def test_any_device_argument_gives_device_results():
    program = add_program()
    ours = to_device(ramp(4), program.device)
    theirs = rt.asdevicearray(program.device.hal, ramp(4), implicit_host_transfer=True)
    elsewhere = to_device(ramp(4), Device("local-task"))
    for pair in [(ours, ours), (ours, ramp(4)), (theirs, ramp(4)), (elsewhere, ours)]:
        result = program(*pair)
        assert isinstance(result, Array) and result.device is program.device
        np.testing.assert_array_equal(result.numpy(), 2 * ramp(4))


def test_dlpack_arguments_of_the_host_are_numpy():
    class Foreign:
        def __dlpack__(self, **_):
            return ramp(4).__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    result = add_program()(Foreign(), ramp(4))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, 2 * ramp(4))


def test_several_results_are_a_tuple():
    text = add_text().replace(
        b"-> tensor<4xf32> {\n  ", b"-> (tensor<4xf32>, tensor<4xf32>) {\n  ", 1
    )
    text = re.sub(
        rb"return %r : tensor<4xf32>", b"return %r, %a : tensor<4xf32>, tensor<4xf32>", text
    )
    manifest = make_manifest(host_target(), signature(2, (4,), "f32", outputs=2), "two")
    program = Program(Artifact(compile_module(text, host_target()), manifest), Device("local-sync"))
    total, first = program(ramp(4), ramp(4))
    np.testing.assert_array_equal(total, 2 * ramp(4))
    np.testing.assert_array_equal(first, ramp(4))


def test_dynamic_dimensions():
    program = add_program(DYNAMIC)
    for n in (0, 1, 3, 5):
        a = to_device(ramp(n, 8), program.device)
        assert program(a, a).shape == (n, 8)
        np.testing.assert_array_equal(program(ramp(n, 8), ramp(n, 8)), 2 * ramp(n, 8))


def test_guards_name_the_argument():
    program = add_program(DYNAMIC)
    a = ramp(3, 8)
    text = refused(ReasonCode.ARGUMENT_COUNT, program, a)
    assert "expected 2 arrays (`a`: tensor<nx8xf32>" in text and "got 1" in text
    text = refused(ReasonCode.ARGUMENT_DTYPE, program, a, a.astype(np.float64))
    assert "argument `b`: expected element type f32, got f64" in text
    assert "rank 1" in refused(ReasonCode.ARGUMENT_SHAPE, program, a[0], a)
    assert "8 on axis 1), got shape (3, 7) (7);" in refused(
        ReasonCode.ARGUMENT_SHAPE, program, a, a[:, :7]
    )
    text = refused(ReasonCode.DIMENSION_MISMATCH, program, a, ramp(4, 8))
    assert "dimension `n`: expected 3 as on axis 0 of `a`, got 4 on axis 0 of `b`" in text
    refused(ReasonCode.ARGUMENT_SHAPE, program, a, 1.0)
    refused(ReasonCode.BAD_ARGUMENT, program, a, "1.0")
    assert program.stats().guard_failures == 7
    assert program.stats().calls == 0


def test_guards_hold_for_device_arrays():
    program = add_program(DYNAMIC)
    three, four = (to_device(ramp(n, 8), program.device) for n in (3, 4))
    program(three, three)
    program(four, four)
    refused(ReasonCode.DIMENSION_MISMATCH, program, three, four)
    refused(
        ReasonCode.ARGUMENT_DTYPE,
        program,
        three,
        to_device(ramp(3, 8, dtype="i32"), program.device),
    )
    refused(ReasonCode.ARGUMENT_COUNT, program, three)


def test_unnamed_dynamic_dimensions_are_free():
    artifact = add_artifact((None, 8))
    assert artifact.signature.check([((2, 8), DTYPES["f32"]), ((3, 8), DTYPES["f32"])]) == {}
    assert add_artifact(DYNAMIC).signature.check([((2, 8), DTYPES["f32"])] * 2) == {"n": 2}


def test_stats():
    program = add_program()
    assert program.stats().seconds_median is None and program.stats().seconds_last is None
    for _ in range(3):
        program(ramp(4), ramp(4))
    stats = program.stats()
    assert stats.calls == 3 and stats.guard_failures == 0
    assert stats.seconds_total >= (stats.seconds_median or 0) > 0
    assert stats.device_memory.peak_bytes >= 48
    assert stats.artifact_bytes == len(add_artifact().vmfb)


def test_runtime_failures_are_named():
    manifest = make_manifest(host_target(), signature(1, ("n",), "f32"), "checked")
    vmfb = compile_module(CHECKED, host_target())
    program = Program(Artifact(vmfb, manifest), Device("local-sync"))
    np.testing.assert_array_equal(program(ramp(3)), ramp(3))
    assert "too long" in refused(ReasonCode.RUNTIME_FAILED, program, ramp(5))


def test_threads_share_a_program():
    for kind in ("local-sync", "local-task"):
        program = add_program(DYNAMIC, device=Device(kind))

        def work(seed: int, program: Program = program) -> bool:
            a = ramp(seed + 1, 8) + seed
            on_device = to_device(a, program.device)
            return all(
                np.array_equal(program(a, a), 2 * a)
                and np.array_equal(program(on_device, on_device).numpy(), 2 * a)
                for _ in range(50)
            )

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(8)))
        assert program.stats().calls == 8 * 50 * 2


def test_wrong_device():
    manifest = make_manifest(TARGETS["cuda"], signature(2, (4,), "f32"), "add")
    artifact = Artifact(compile_module(add_text(), TARGETS["cuda"]), manifest)
    with pytest.raises(PycError, match="expected a device of kind `cuda`") as caught:
        Program(artifact, Device("local-sync"))
    assert caught.value.code is ReasonCode.DEVICE_UNAVAILABLE


def test_lacking_cpu_features_do_not_reach_the_cpu():
    needing = add_artifact().noted(features=("avx2", "no-such-feature"))
    with pytest.raises(PycError, match="without no-such-feature") as caught:
        Program(needing, Device("local-sync"))
    assert caught.value.code is ReasonCode.DEVICE_UNAVAILABLE


def test_vmfb_that_is_none():
    for vmfb in (b"", b"nonsense" * 20):
        with pytest.raises(PycError) as caught:
            Program(replace(add_artifact(), vmfb=vmfb), Device("local-sync"))
        assert caught.value.code is ReasonCode.BAD_ARTIFACT


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("kind", ["cuda", "vulkan"])
def test_gpu_programs_run_where_there_is_a_device(kind, dtype):
    target = TARGETS[kind]
    if dtype in target.lacks():
        pytest.skip(f"{kind} lacks {dtype}")
    try:
        device = Device(kind)
    except PycError as error:
        pytest.skip(f"no {kind} device: {error.message}")
    # 15 elements: buffers of narrow types that end within a word.
    shape = (3, 5)
    manifest = make_manifest(target, signature(2, shape, dtype), "add")
    program = Program(Artifact(compile_module(add_text(shape, dtype), target), manifest), device)
    a = ramp(*shape, dtype=dtype)
    expected = a | a if dtype == "i1" else a + a
    np.testing.assert_array_equal(program(a, a), expected)
    on_device = to_device(a, device)
    np.testing.assert_array_equal(program(on_device, on_device).numpy(), expected)


def test_overhead_is_measured():
    program = add_program()
    a = to_device(ramp(4), program.device)
    timings = time_calls(program, a, a, rounds=3, min_seconds=1e-4)
    assert all(t.median > 0 and len(t.samples) == 3 for t in timings.values())


def test_run_path_needs_no_compiler(tmp_path):
    path = tmp_path / "add.vmfb"
    add_program().save(path)
    code = textwrap.dedent(f"""
        import sys
        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch_mlir" or name.startswith("iree.compiler"):
                    raise ImportError("blocked: " + name)
        sys.meta_path.insert(0, Block())
        import numpy as np
        from pyc_mlir.runtime.load import load
        from pyc_mlir.runtime.array import to_device
        program = load({str(path)!r})
        a = np.arange(4, dtype=np.float32)
        assert (program(a, a) == 2 * a).all()
        on_device = to_device(a, program.device)
        assert (program(on_device, on_device).numpy() == 2 * a).all()
        program.save({str(tmp_path / "again.vmfb")!r})
        print(program.stats().calls)
    """)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "2\n"


@pytest.mark.full
def test_a_forked_child_is_refused_instead_of_hanging() -> None:
    code = """
import os, sys
import numpy as np
import pyc_mlir
program = pyc_mlir.compile(lambda x: x + 1, [pyc_mlir.TensorSpec("f32", 2)],
                           device=pyc_mlir.Device("local-task"))
program(np.zeros(2, np.float32))
child = os.fork()
if child == 0:
    try:
        program(np.zeros(2, np.float32))
    except pyc_mlir.PycError as error:
        os._exit(7 if error.code is pyc_mlir.ReasonCode.DEVICE_UNAVAILABLE else 1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=60)
    assert done.returncode == 7


@pytest.mark.full
def test_saving_where_no_file_can_be_is_refused(tmp_path):
    program = add_program()
    for path in (tmp_path, tmp_path / "none" / "x.vmfb"):
        with pytest.raises(PycError, match="expected a file to write") as caught:
            program.save(path)
        assert caught.value.code is ReasonCode.FILE_ACCESS
