"""Names of ONNX nodes, and the ONNX definition that each node follows."""

import onnx

_DEFAULT_DOMAINS = ("", "ai.onnx")


def opset_of(model: onnx.ModelProto) -> int | None:
    """Return the version of ONNX's default domain that the model imports."""
    versions = [o.version for o in model.opset_import if o.domain in _DEFAULT_DOMAINS]
    return max(versions, default=None)


def is_default_domain(node: onnx.NodeProto) -> bool:
    """Return True for an op of ONNX's own domain."""
    return node.domain in _DEFAULT_DOMAINS


def schema_of(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """Return ONNX's definition of the node's op at `opset`, or None."""
    if is_default_domain(node) and onnx.defs.has(node.op_type, opset, ""):
        return onnx.defs.get_schema(node.op_type, opset, "")
    return None


def node_name(node: onnx.NodeProto) -> str:
    """Return the node's name; without one its op and first output."""
    return node.name or f"{node.op_type}:{next(iter(node.output), '')}"


def qualified_op(node: onnx.NodeProto) -> str:
    """Return the op type, with its domain unless that is ONNX's own."""
    return node.op_type if is_default_domain(node) else f"{node.domain}.{node.op_type}"
