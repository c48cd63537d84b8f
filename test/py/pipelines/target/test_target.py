from pathlib import Path

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.registry import refuse_narrow
from pyc_mlir.pipelines.target.target import TARGETS, V3_FEATURES, CpuInfo, Target, read_host_cpu

AVX512 = CpuInfo(V3_FEATURES | {"avx512f", "sse2"}, cores=16, l2_bytes=2 << 20)
ARM = CpuInfo(frozenset({"fp", "asimd", "asimddp"}), cores=4)


def test_named_and_alias():
    assert Target.named("cuda") is Target.named("cuda-sm_80")
    assert "--iree-cuda-target=sm_89" in Target.named("cuda-sm_89").flags


def test_unknown_target_lists_all():
    with pytest.raises(PycError, match=r"got 'tpu'") as caught:
        Target.named("tpu")
    assert caught.value.code is ReasonCode.UNKNOWN_TARGET
    assert all(name in str(caught.value) for name in TARGETS)


def test_host_cpu_takes_what_the_machine_has():
    host = Target.named("cpu").on(AVX512)
    assert (host.vector_bytes, host.vector_registers, host.cores) == (64, 32, 16)
    assert host.l2_bytes == 2 << 20
    assert host.features == V3_FEATURES | {"avx512f"}


def test_an_arm_host_has_the_registers_of_neon():
    host, level = Target.named("cpu").on(ARM), Target.named("cpu-neon").on(ARM)
    assert (host.vector_bytes, host.vector_registers) == (16, 32)
    assert (level.vector_bytes, level.vector_registers) == (16, 32)
    assert refuse_narrow(host) == ""
    old = Target.named("cpu").on(CpuInfo(frozenset({"sse2"}), cores=1))
    assert old.vector_registers == 16 and "expected a CPU with AVX2" in refuse_narrow(old)


def test_named_level_keeps_its_features():
    level = Target.named("cpu-avx2").on(AVX512)
    assert (level.vector_bytes, level.features, level.cores) == (32, V3_FEATURES, 16)


def test_gpu_targets_ignore_the_host():
    assert Target.named("vulkan").on(AVX512) is Target.named("vulkan")


def test_vulkan_lacks_doubles():
    assert Target.named("vulkan").lacks() == {"f64"}
    assert not Target.named("cuda").lacks()


def test_reads_linux_files(tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Test CPU\n"
        "flags\t\t: fma avx2\n\nprocessor\t: 1\nflags\t\t: fma avx2\n"
    )
    for number, (kind, level, size) in enumerate(
        [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "3", "32M")]
    ):
        folder = tmp_path / "cpu0" / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for part, text in (("type", kind), ("level", level), ("size", size)):
            (folder / part).write_text(f"{text}\n")
    cpu = read_host_cpu(cpuinfo, tmp_path)
    features, model = frozenset({"fma", "avx2"}), "Test CPU 6 85"
    assert cpu == CpuInfo(features, 2, l1_bytes=48 << 10, l3_bytes=32 << 20, model=model)
    assert cpu is not None and cpu.vector_bytes == 32


@pytest.mark.full
def test_no_linux_files(tmp_path: Path):
    assert read_host_cpu(tmp_path / "none", tmp_path) is None
