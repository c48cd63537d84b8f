"""The contract of every kernel family: kernels compute what the ops of the group compute."""

from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest
from conftest import FULL
from family_checks import cases, check, knobs_of
from kernel_runs import any_target, name_of, pairs, targets
from kernel_works import MATCHING

from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.kernels.knobs import (
    KernelKnobs,
    cuts,
    decode,
    encode,
    knob,
    shares,
    space_around,
    with_settings,
)
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier, Dim
from pyc_mlir.pipelines.kernels.registry import ENTRY_POINT_GROUP, FAMILIES, Families
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import CpuInfo, Target

AVX512 = Target.named("cpu-avx512")
# Families that compute nothing.
MOVES = ("transpose", "concat", "resize")
# Families with kernels for instructions that the named targets lack.
MORE_FORMS = ("half_gemm", "approximate_gemm", "packed")
KERNELS, VARIANTS, NEON_KERNELS = (170, 2, 4) if FULL else (3, 1, 2)


@pytest.mark.parametrize("name,target", pairs("test_families", MATCHING), ids=name_of)
def test_kernels_compute_what_their_ops_do(name, target):
    check(target, cases(name, target, 0, KERNELS, VARIANTS))


@pytest.mark.parametrize("name", MORE_FORMS)
def test_kernels_of_this_machine_compute_what_their_ops_do(name):
    target = make_options().target
    check(target, cases(name, target, 1, 1 + KERNELS // 2))


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.full
def test_kernels_compile_for_neon(name):
    target = Target.named("cpu-neon")
    carrier = Carrier(target)
    drawn = knobs_of(name, target, 0, NEON_KERNELS)
    assert all(FAMILIES[name].offers(knobs, target) for knobs in drawn)
    kernels = [knobs.kernel(f"k{i}") for i, knobs in enumerate(drawn)]
    carrier.add(*kernels)
    for kernel in kernels:
        carrier.call(kernel)
    assert compile_module(carrier.bytecode(), target)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_knobs_are_data(name):
    drawn, again = (knobs_of(name, AVX512, 0, 4) for _ in range(2))
    assert drawn == again and list(map(hash, drawn)) == list(map(hash, again))
    for knobs in drawn:
        assert decode(FAMILIES[name].knobs, encode(knobs)) == knobs
        with pytest.raises(FrozenInstanceError):
            setattr(knobs, fields(knobs)[0].name, None)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_family_prices_and_refuses(name):
    family = FAMILIES[name]
    for knobs in knobs_of(name, AVX512, 1, 6):
        sizes = dict.fromkeys(knobs.kernel("k").sizes, 64)
        cost = family.cost(knobs, Target.named("cpu-avx2"), sizes)
        assert isinstance(cost, Cost) and cost.seconds > 0 and cost.traffic_bytes > 0
        assert cost.flops > 0 or name in MOVES
        assert family.offers(knobs, AVX512)
        assert "expected a CPU with AVX2" in family.refusal(knobs, Target.named("cuda"))


class Plugin:
    def __init__(self, result, name="outside", value="somewhere:FAMILY"):
        self.result, self.name, self.value = result, name, value

    def load(self):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def register(monkeypatch, *plugins):
    def found(group):
        assert group == ENTRY_POINT_GROUP
        return plugins

    monkeypatch.setattr("pyc_mlir.pipelines.kernels.registry.registered", found)
    return Families()


OUTSIDE = replace(FAMILIES["rows"], name="outside")


def test_a_third_party_registers_a_family(monkeypatch):
    families = register(monkeypatch, Plugin(OUTSIDE))
    assert "outside" in list(families) and families["outside"] is OUTSIDE


def test_a_broken_plugin_is_named(monkeypatch):
    families = register(monkeypatch, Plugin(ImportError("no such thing")))
    with pytest.raises(PycError, match="somewhere:FAMILY") as caught:
        families["outside"]
    assert caught.value.code is ReasonCode.MISSING_DEPENDENCY


@pytest.mark.parametrize("result", [FAMILIES["rows"], "rows"])
def test_a_plugin_is_a_family_of_its_name(monkeypatch, result):
    families = register(monkeypatch, Plugin(result))
    with pytest.raises(PycError, match="`outside`: expected plugin somewhere:FAMILY") as caught:
        families["outside"]
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_a_name_that_is_taken_is_refused(monkeypatch):
    for plugins in ([Plugin(OUTSIDE, "rows")], [Plugin(OUTSIDE), Plugin(OUTSIDE, value="b:C")]):
        families = register(monkeypatch, *plugins)
        with pytest.raises(PycError, match="one family of that name") as caught:
            list(families)
        assert caught.value.code is ReasonCode.BAD_ARGUMENT
    register(monkeypatch, Plugin(OUTSIDE, "rows"))
    with pytest.raises(PycError, match="`rows`: expected one family of that name"):
        make_options(kernels="gemm")


def test_a_level_that_the_host_lacks_is_a_skip_with_its_reason(monkeypatch):
    old = CpuInfo(Target.named("cpu-avx2").features, cores=1)
    monkeypatch.setattr("kernel_runs.host_cpu", lambda: old)
    first, second = targets()
    assert not first.marks and "avx512f" in second.marks[0].kwargs["reason"]
    assert any_target() is first.values[0]


@dataclass(frozen=True)
class Inner(KernelKnobs, family="inner"):
    width: int = knob(4, lambda k, target: shares(target, k.width))


@dataclass(frozen=True)
class Knobs(KernelKnobs, family="outer"):
    """A kernel of even heights, at most 8 rows and columns in all."""

    height: int = knob(2, (1, 4, 6))
    panel: int = knob(4, (2, 6))
    rows: Dim = "m"
    streaming: bool = False
    images: Inner = Inner()

    def _misfit(self):
        return "an even height" if self.height % 2 else ""


def refused(knobs):
    return "" if knobs.height + knobs.panel <= 8 else "too large"


def test_a_space_has_what_can_be_made_and_is_not_refused():
    space = space_around(Knobs(), replace(AVX512, cores=1), refused)
    assert space is not None
    assert [axis.name for axis in space.axes] == ["height", "panel", "images.width"]
    assert space.settings(space.default) == {"height": 2, "panel": 4, "images.width": 4}
    found = {tuple(space.settings(config).values())[:2] for config in space}
    assert found == {(2, 2), (2, 4), (2, 6), (4, 2), (4, 4), (6, 2)}


def test_nothing_to_vary_is_no_space():
    assert space_around(Inner(1), replace(AVX512, cores=1), refused) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"height": 0}, "outer kernel: expected `height`: at least 1, got 0"),
        ({"rows": 0}, "`rows`: at least 1"),
        ({"height": 3}, "outer kernel: expected an even height, got Knobs"),
        ({"images.width": 0}, "inner kernel: expected `width`"),
    ],
)
def test_fields_are_what_they_declare(wrong, message):
    with pytest.raises(PycError, match=message) as caught:
        with_settings(Knobs(), wrong)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_names_become_sizes():
    assert Knobs().at({"m": 7}) == Knobs(rows=7)


def test_settings_reach_into_knobs():
    made = with_settings(Knobs(), {"height": 4, "images.width": 8})
    assert made == Knobs(height=4, images=Inner(8))


@pytest.mark.full
def test_grids_are_one_workgroup_or_some_for_each_core():
    cores = replace(AVX512, cores=4)
    assert shares(cores, 100) == [1, 4, 8, 16] and shares(cores, 9) == [1, 4, 8]
    assert shares(replace(AVX512, cores=1), 100) == [1]
    assert cuts(cores, 5, 8) == [(1, 1), (1, 4), (1, 8), (4, 1)]
