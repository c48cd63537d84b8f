"""Write out the calls of a model's own functions.

onnx's inliner puts a function's body in place of a call, and drops an attribute of the body that
refers to one which the call does not give. It does not know the defaults that a function states for
its attributes, so these are stated at the calls first.
"""

from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx.inliner

from pyc_mlir.frontends.onnx.bounds import all_nodes

_Name = tuple[str, str]


def with_functions_inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without functions. The nodes of `model` itself may get attributes."""
    if not any(function.attribute_proto for function in model.functions):
        return onnx.inliner.inline_local_functions(model)
    # One function at a time, callers first: only then is it known what a call inside of another
    # function gives.
    for name in _callers_first(model):
        functions = [f for f in model.functions if (f.domain, f.name) == name]
        _state_defaults(all_nodes(model.graph.node), functions)
        model = onnx.inliner.inline_selected_functions(model, [name])
    return model


def _callers_first(model: onnx.ModelProto) -> list[_Name]:
    """Return the functions that the graph calls, also indirectly, callers before callees."""
    bodies: dict[_Name, list[onnx.NodeProto]] = {}
    for function in model.functions:
        bodies.setdefault((function.domain, function.name), []).extend(function.node)
    done: dict[_Name, None] = {}

    def visit(nodes: Sequence[onnx.NodeProto]) -> None:
        for node in all_nodes(nodes):
            name = node.domain, node.op_type
            if name in bodies and name not in done:
                visit(bodies[name])
                done[name] = None

    visit(model.graph.node)
    return list(reversed(done))


def _state_defaults(
    nodes: Iterator[onnx.NodeProto], functions: Iterable[onnx.FunctionProto]
) -> None:
    """Write the functions' defaults out at the calls that leave their attributes out."""
    by_name = {(f.domain, f.name, f.overload): f for f in functions}
    for node in nodes:
        function = by_name.get((node.domain, node.op_type, node.overload))
        if function is not None:
            given = {a.name for a in node.attribute}
            node.attribute.extend(a for a in function.attribute_proto if a.name not in given)
