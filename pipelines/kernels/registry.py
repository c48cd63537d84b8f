"""The registry of kernel families: name -> `Family`, third parties' included.

A family makes kernels of one kind and says what is legal, what a call costs and which ops they
compute; its knobs are a frozen dataclass (`knobs.py`). The shared suite in
test/py/pipelines/kernels/test_families.py runs every family on such ops and compares with their
references. Others register through the entry point group ``pyc_mlir.kernels`` (the name is the
family's, the object a `Family`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Protocol

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.plugins import registered
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.knobs import space_around
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

ENTRY_POINT_GROUP = "pyc_mlir.kernels"
# By name the module in `families`, and the constant in it that is the family.
_FOLDER = "pyc_mlir.pipelines.kernels.families"
BUILT_IN = {
    "rows": "rows",
    "gemm": "gemm",
    "half_gemm": "gemm:HALVES_FAMILY",
    "checked_gemm": "checked",
    "approximate_gemm": "approximate",
    "batch_gemm": "batch:BATCH_GEMM",
    "gemv": "batch:GEMV",
    "int8": "conv.bytes",
    "int8_depthwise": "conv.channelwise:INT8",
    "int8_pool": "conv.channelwise:BYTE_POOL",
    "packed": "packed",
    "int8_elementwise": "elementwise:INT8",
    "conv": "conv.direct",
    "winograd": "conv.winograd",
    "depthwise": "conv.channelwise",
    "pool": "conv.channelwise:POOL",
    "columns": "reduce:COLUMNS",
    "full_reduce": "reduce:FULL_REDUCE",
    "argmax": "reduce:ARGMAX",
    "transpose": "moves:TRANSPOSE",
    "resize": "moves:RESIZE",
    "concat": "moves:CONCAT",
    "elementwise": "elementwise",
}


class Knobs(Protocol):
    """One kernel to be, as a frozen dataclass (`KernelKnobs`); made only if its values fit."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def kernel(self, name: str) -> Kernel:
        """Return the kernel, under a name."""
        ...


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


def refusal(knobs: Any, target: Target) -> str:
    """Refuse what every family refuses, and what the knobs refuse themselves."""
    return refuse_narrow(target) or knobs.refusal(target)


def operand_cost(knobs: Any, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count the knobs' `flops`, and each operand once across memory but for scratch memory.

    Operands that are laid out when compiling are constants, of knobs that say so (`lays_out`).
    Dynamic dimensions have the given `sizes`; `knobs.speed` is the kind of kernel whose speed the
    cost model takes.
    """
    known = knobs.at(sizes).counted
    operands = [o for o in known.kernel("k").operands_of_work if o.name not in known.small]
    made = CostModel(target).kernel(known.speed, known.flops, sum(o.nbytes for o in operands))
    constants = sum(o.nbytes for o in operands if o.layout is not None and known.lays_out)
    return replace(made, constant_bytes=constants)


@dataclass(frozen=True)
class Family:
    """Kernels of one kind.

    - `match(work, target)`: kernels for the first ops of a group, best first; none by default.
    - `refusal(knobs, target)`: why there is no such kernel for the target, or "". By default what
      every family refuses, and `refusal` of the knobs.
    - `cost(knobs, target, sizes)`: of one call; `sizes` are those of the dynamic dimensions. Its
      `flops`, which `CostModel.kernel` fills in, are what the kernel declares to the memory
      planner. By default `operand_cost`, from `flops` and `speed` of the knobs.
    - `checked(offer, target)`: of a family that `CHECKED` names, the kernel that stands for that of
      another family; None, the default, where there is none.
    - `approximated(offer, target, way, allowed)`: an offer of `gemm` in fewer bits (`way`) with an
      error of at most `allowed`; None, the default, where there is none.

    `knobs` is their type, a frozen dataclass of `KernelKnobs`.
    """

    name: str
    knobs: type[Any]
    match: Callable[[Work, Target], Sequence[KernelOffer]] = lambda work, target: ()
    refusal: Callable[..., str] = refusal
    cost: Callable[..., Cost] = operand_cost
    checked: Callable[[KernelOffer, Target], KernelOffer | None] = lambda offer, target: None
    approximated: Callable[[KernelOffer, Target, str, float], KernelOffer | None] = (
        lambda offer, target, way, allowed: None
    )

    def offers(self, knobs: Knobs, target: Target) -> bool:
        """Return whether the family has this kernel for the target."""
        return not self.refusal(knobs, target)

    def offer(
        self,
        knobs: Knobs,
        target: Target,
        covers: int,
        feeds: Sequence[Feed],
        sizes: Mapping[str, int] | None = None,
        **others: Any,
    ) -> list[KernelOffer]:
        """Return the offer of a kernel for a target; none where it is refused.

        `sizes` are what dynamic dimensions count for, the nominal one by default; `others` are
        further fields of the offer.
        """
        if self.refusal(knobs, target):
            return []
        taken = {**dict.fromkeys(knobs.kernel("k").sizes, NOMINAL_DIMENSION), **(sizes or {})}
        price = self.cost(knobs, target, taken)
        return [KernelOffer(knobs, covers, tuple(feeds), price, **others)]

    def space(self, offer: KernelOffer, target: Target) -> KnobSpace | None:
        """Return the legal knob sets around an offer, whose `default` is the offer itself.

        All compute the same within the rounding of their ops; None where there is no other one.
        """
        return space_around(offer.knobs, target, lambda made: self.refusal(made, target))


class Families(Mapping[str, Family]):
    """The families by name; a plugin is imported when it is asked for.

    A plugin under the name of another family is refused (PycError, BAD_ARGUMENT) wherever all are
    listed, as each compile does, or the plugin is asked for.
    """

    def __getitem__(self, name: str) -> Family:
        """Import a family. Raises KeyError, or PycError (MISSING_DEPENDENCY) for a bad plugin."""
        if name in BUILT_IN:
            module, _, attribute = BUILT_IN[name].partition(":")
            return getattr(import_module(f"{_FOLDER}.{module}"), attribute or "FAMILY")
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
