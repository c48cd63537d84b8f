"""Composites by name: functions that a program names and whose decomposition it carries.

`pyc_mlir.jax.nn` writes these names (`jax.lax.composite`), StableHLO keeps them as
``stablehlo.composite "pyc.softmax"``. A composite that is not listed, or whose attributes PyC's op
does not have, is imported by its decomposition.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.ordering import top_k
from pyc_mlir.frontends.importing.importer import Importer, SourceNode
from pyc_mlir.frontends.importing.stated import Stated

Composite = Callable[[Call, Mapping[str, Any]], Any]


def _axis(attributes: Mapping[str, Any]) -> int:
    return int(attributes.get("axis", -1))


def softmax(call: Call, attributes: Mapping[str, Any]) -> Any:
    """pyc.softmax along `axis`."""
    return call.b.softmax(call.x(), axis=_axis(attributes))


def log_softmax(call: Call, attributes: Mapping[str, Any]) -> Any:
    """pyc.log_softmax along `axis`."""
    return call.b.log_softmax(call.x(), axis=_axis(attributes))


def layer_norm(call: Call, attributes: Mapping[str, Any]) -> Any:
    """pyc.layernorm over the last dimension: x, scale, bias."""
    return call.b.layernorm(*call.all(), axis=-1, epsilon=float(attributes["epsilon"]))


def rms_norm(call: Call, attributes: Mapping[str, Any]) -> Any:
    """pyc.rmsnorm over the last dimension: x, scale."""
    return call.b.rmsnorm(*call.all(), axis=-1, epsilon=float(attributes["epsilon"]))


def gelu(call: Call, attributes: Mapping[str, Any]) -> Any:
    """pyc.gelu, exact or with tanh."""
    return call.b.gelu(call.x(), approximate="tanh" if attributes["approximate"] else "none")


def attention(call: Call, attributes: Mapping[str, Any]) -> Any:
    """pyc.attention on [batch, heads, length, depth]: query, key, value and perhaps a mask."""
    scale, causal = float(attributes["scale"]), bool(attributes["is_causal"])
    return call.b.attention(*call.all(), scale=scale, is_causal=causal)


def top(call: Call, attributes: Mapping[str, Any]) -> Any:
    """chlo.top_k: the k largest along the last dimension and their indices."""
    return top_k(call.b, call.x(), int(attributes["k"]))


def by_name(
    importer: Importer, site: SourceNode, operands: Sequence[Any], name: str, given: Stated
) -> Sequence[Any]:
    """Build the op of a composite's name; nothing where its decomposition is to be imported."""
    known, before = COMPOSITES.get(name), len(importer.findings)
    if known is None:
        return ()
    out = importer.node(
        site, operands, lambda b, lift: known(Call(b, operands, lift), given), given
    )
    if not out:
        del importer.findings[before:]
    return out


COMPOSITES: dict[str, Composite] = {
    "pyc.softmax": softmax,
    "pyc.log_softmax": log_softmax,
    "pyc.layer_norm": layer_norm,
    "pyc.rms_norm": rms_norm,
    "pyc.gelu": gelu,
    "pyc.attention": attention,
    "chlo.top_k": top,
}
