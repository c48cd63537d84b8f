"""The registry of kernel families: name -> `Family`, third parties' included.

A family makes kernels of one kind and says what is legal, what a call costs and which groups of ops
it computes; its knobs are a frozen dataclass (`Knobs`). Others register through the entry point
group ``pyc_mlir.kernels`` (the name is the family's, the object a `Family`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Protocol

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.plugins import registered
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

ENTRY_POINT_GROUP = "pyc_mlir.kernels"
BUILT_IN = {
    "rows": "pyc_mlir.pipelines.kernels.families.rows",
    "gemm": "pyc_mlir.pipelines.kernels.families.gemm",
    "half_gemm": "pyc_mlir.pipelines.kernels.families.packed.half_gemm",
    "checked_gemm": "pyc_mlir.pipelines.kernels.families.checked_gemm",
    "approximate_gemm": "pyc_mlir.pipelines.kernels.families.approximate.family",
    "batch_gemm": "pyc_mlir.pipelines.kernels.families.batch_gemm",
    "gemv": "pyc_mlir.pipelines.kernels.families.gemv",
    "packing": "pyc_mlir.pipelines.kernels.families.packing",
    "int8": "pyc_mlir.pipelines.kernels.families.int8.family",
    "int8_depthwise": "pyc_mlir.pipelines.kernels.families.int8.depthwise",
    "int8_pool": "pyc_mlir.pipelines.kernels.families.int8.pool",
    "packed": "pyc_mlir.pipelines.kernels.families.packed.family",
    "int8_elementwise": "pyc_mlir.pipelines.kernels.families.int8.pointwise",
    "conv": "pyc_mlir.pipelines.kernels.families.conv.convolution",
    "winograd": "pyc_mlir.pipelines.kernels.families.conv.winograd",
    "depthwise": "pyc_mlir.pipelines.kernels.families.conv.depthwise",
    "pool": "pyc_mlir.pipelines.kernels.families.conv.pool",
    "columns": "pyc_mlir.pipelines.kernels.families.columns",
    "full_reduce": "pyc_mlir.pipelines.kernels.families.full_reduce",
    "argmax": "pyc_mlir.pipelines.kernels.families.argmax",
    "transpose": "pyc_mlir.pipelines.kernels.families.movement.transpose",
    "resize": "pyc_mlir.pipelines.kernels.families.movement.resize",
    "concat": "pyc_mlir.pipelines.kernels.families.movement.concat",
    "elementwise": "pyc_mlir.pipelines.kernels.families.elementwise",
}


class Knobs(Protocol):
    """One kernel to be, as a frozen dataclass; made only if its values fit together."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def kernel(self, name: str) -> Kernel:
        """Return the kernel, under a name."""
        ...


@dataclass(frozen=True)
class Family:
    """Kernels of one kind.

    - `refusal(knobs, target)`: why there is no such kernel for the target, or "".
    - `cost(knobs, target, sizes)`: of one call; `sizes` are those of the dynamic dimensions. Its
      `flops`, which `CostModel.kernel` fills in, are what the kernel declares to the memory
      planner.
    - `match(work, target)`: kernels for the first ops of a group, best first; none by default.
    - `checked(offer, target)`: of a family that `CHECKED` names, the kernel that stands for that of
      another family; None, the default, where there is none.
    - `approximated(offer, target, way, allowed)`: an offer of `gemm` in fewer bits (`way`) with an
      error of at most `allowed`; None, the default, where there is none.
    - `space(offer, target)`: the legal knob sets around an offer, whose `default` is the offer
      itself; all compute what the ops do. None, the default, for no other one.

    `knobs` is their type.
    """

    name: str
    knobs: type[Any]
    refusal: Callable[..., str]
    cost: Callable[..., Cost]
    match: Callable[[Work, Target], Sequence[KernelOffer]] = lambda work, target: ()
    space: Callable[[KernelOffer, Target], KnobSpace | None] = lambda offer, target: None
    checked: Callable[[KernelOffer, Target], KernelOffer | None] = lambda offer, target: None
    approximated: Callable[[KernelOffer, Target, str, float], KernelOffer | None] = (
        lambda offer, target, way, allowed: None
    )

    def offers(self, knobs: Knobs, target: Target) -> bool:
        """Return whether the family has this kernel for the target."""
        return not self.refusal(knobs, target)


class Families(Mapping[str, Family]):
    """The families by name; a plugin is imported when it is asked for.

    A plugin under the name of another family is refused (PycError, BAD_ARGUMENT) wherever all are
    listed, as each compile does, or the plugin is asked for.
    """

    def __getitem__(self, name: str) -> Family:
        """Import a family. Raises KeyError, or PycError (MISSING_DEPENDENCY) for a bad plugin."""
        if name in BUILT_IN:
            return import_module(BUILT_IN[name]).FAMILY
        plugin = _plugins()[name]
        try:
            family = plugin.load()
        except Exception as error:
            raise PycError(
                ReasonCode.MISSING_DEPENDENCY,
                f"kernel family `{name}`: expected plugin {plugin.value} to import, got "
                f"{type(error).__name__}: {error}; mend or uninstall the plugin",
            ) from error
        if not isinstance(family, Family) or family.name != name:
            came = getattr(family, "name", family)
            raise _refusal(name, f"plugin {plugin.value} to be a Family of that name", repr(came))
        return family

    def __iter__(self) -> Iterator[str]:
        yield from BUILT_IN
        yield from sorted(_plugins())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _plugins() -> dict[str, EntryPoint]:
    """Return third parties' families. Raises PycError (BAD_ARGUMENT) for a name given twice."""
    found: dict[str, EntryPoint] = {}
    for plugin in registered(ENTRY_POINT_GROUP):
        other = BUILT_IN.get(plugin.name) or getattr(found.get(plugin.name), "value", plugin.value)
        if other != plugin.value:
            raise _refusal(plugin.name, f"one family of that name ({other})", plugin.value)
        found[plugin.name] = plugin
    return found


def _refusal(name: str, expected: str, came: str) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT,
        f"kernel family `{name}`: expected {expected}, got {came}; rename or uninstall the plugin",
    )


FAMILIES = Families()


def refuse_narrow(target: Target) -> str:
    """Refuse a target that is no CPU with AVX2, AVX-512 or NEON.

    Without wider vectors NEON makes up in registers: SSE has neither.
    """
    wide = target.vector_bytes in (32, 64) or (
        target.vector_bytes == 16 and target.vector_registers >= 32
    )
    if target.device != "local" or not wide:
        return f"{target.name}: expected a CPU with AVX2, AVX-512 or NEON"
    return ""


def refuse_target(knobs: Knobs, target: Target) -> str:
    """Refuse nothing beyond what every family refuses."""
    return refuse_narrow(target)
