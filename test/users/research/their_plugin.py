"""A third party's pass, policy and kernel family."""

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.kernels.families import rows
from pyc_mlir.pipelines.pyc.rewriting import functions_of, pyc_ops


@dataclass(frozen=True)
class TanhGelu:
    """Offer the tanh formula for exact gelus."""

    name: ClassVar[str] = "tanh-gelu"
    at_most: int = option(8, "gelus to replace at most")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        replaced = 0
        for function in functions_of(module):
            ids = OpIds(function)
            for op in pyc_ops(function.regions[0].blocks[0]):
                if op.name == "pyc.gelu" and replaced < self.at_most:
                    site = Site(self.name, ids[op], str(op.location))
                    offered = [Alternative("tanh"), Alternative("exact")]
                    if context.choices.choose(site, offered).name == "tanh":
                        op.attributes["approximate"] = ir.StringAttr.get("tanh", op.context)
                        replaced += 1
        return {"replaced": replaced}


class Plain:
    """Never fuses where it need not."""

    name = "plain"

    def prefer(self, site, alternatives):
        return next((a.name for a in alternatives if a.name == "keep"), alternatives[0].name)


FAMILY = replace(rows.FAMILY, name="theirs")
