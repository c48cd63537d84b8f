"""From a protobuf to a checked model of an opset that the importer reads.

Checks, in this order: the opset is at most `NEWEST`; nodes are within bounds (reading.py); weights
are as large as their types require and lie inside the model's directory (weights.py); onnx's
checker accepts the rest; older opsets convert to `OLDEST`; functions are inlined; the shapes and
types fit (onnx's shape inference in strict mode).
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from pyc_mlir.artifact.import_report import GraphBreak, UnsupportedModel
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.frontends.onnx.ops.node import SIMPLE
from pyc_mlir.frontends.onnx.reading import (
    DEFAULT_DOMAINS,
    ModelSource,
    all_nodes,
    bad_model,
    check_nodes,
    live_nodes,
    names_of,
    opset_of,
    refused,
    schema_of,
    schemas_of,
)
from pyc_mlir.frontends.onnx.weights import (
    MissingFile,
    ModelWeights,
    split_weights,
    unread_weights,
)

# What onnx's native code raises at a model: sizes of lists in attributes end as any of these.
NATIVE_ERRORS = (
    onnx.shape_inference.InferenceError,
    IndexError,
    MemoryError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)
OLDEST, NEWEST = 13, 28
_RESIZE_WITH_COORDINATES = 11
_HARD = "pyc.hard "
_COORDINATES = "coordinate_transformation_mode"
_MICROSOFT = "com.microsoft"
_PREVIEW = "ai.onnx.preview"
# Of functions that stand for ONNX's own until they are inlined.
_OWN_DOMAIN = "pyc.inlined"
UNKNOWN_OP = "PyC does not know this op"
Schemas = Sequence[tuple[onnx.NodeProto, onnx.defs.OpSchema | None]]


@dataclass(frozen=True)
class PreparedModel:
    """A checked model without its larger initializers, which are inputs of the graph in it."""

    model: onnx.ModelProto
    weights: ModelWeights


def prepare(
    model: onnx.ModelProto, source: ModelSource, known_ops: set[str], outputs: Sequence[str] = ()
) -> PreparedModel:
    """Check the model, convert it and inline its functions down to `known_ops` where possible.

    The model given stays as it is. `outputs`: values that are its results, of which other nodes are
    no part. Raises PycError: BAD_MODEL, UNSUPPORTED_OP for an opset that is out of reach, or
    BAD_ARGUMENT for an output that is no value.
    """
    opset = opset_of(model)
    if opset is not None and opset > NEWEST:
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{source.name}: expected opset {OLDEST} to {NEWEST} (older ones are converted), got "
            f"{opset}; export the model with opset {NEWEST}",
        )
    if opset is not None and opset < 1:
        raise bad_model(source.name, f"expected an opset of {OLDEST} to {NEWEST}, got {opset}")
    try:
        check_nodes(model)
        light, weights = split_weights(model, source.directory)
    except (OSError, MissingFile) as error:
        raise unread_weights(source.name, error) from error
    except ValueError as error:
        raise bad_model(source.name, str(error)) from error
    if outputs:
        _cut(light, outputs, source)
    _state_domains(light)
    schemas = schemas_of(light, opset or NEWEST)
    _refuse_undefined(light, source, opset or NEWEST, schemas, known_ops)
    try:
        onnx.checker.check_model(_with_output_shapes(light))
    except onnx.checker.ValidationError as error:
        raise bad_model(source.name, f"expected a valid ONNX model, got: {error}") from error
    _check_attributes(schemas, source)
    _state_defaults_of(light, opset or NEWEST)
    if opset is not None and opset < OLDEST:
        light, opset = _converted(light, source, opset), OLDEST
    light = _inlined(light, opset or NEWEST, known_ops)
    error = _shape_error(light)
    if error is not None:
        raise bad_model(source.name, f"expected types and shapes that fit, got: {error}") from error
    return PreparedModel(light, weights)


def _cut(model: onnx.ModelProto, outputs: Sequence[str], source: ModelSource) -> None:
    """Make these values the graph's results, in this order, and drop nodes that none needs."""
    graph = model.graph
    known = [name for node in graph.node for name in node.output if name]
    known += [value.name for value in (*graph.input, *graph.initializer)]
    typed = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    for number, name in enumerate(outputs):
        if name not in known or name in outputs[:number]:
            given = ", ".join(value.name for value in graph.output)
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                where=f"{source.name}: outputs",
                expected=f"different values of the graph (its own results are {given})",
                got=f"{name!r}{' twice' if name in known else did_you_mean(name, known)}",
                remedy="name outputs of nodes as the model's file has them",
            )
    wanted = [typed.get(name) or onnx.ValueInfoProto(name=name) for name in outputs]
    del graph.output[:]
    graph.output.extend(wanted)
    kept = [graph.node[index] for index in sorted(live_nodes(graph))]
    del graph.node[:]
    graph.node.extend(kept)


def _state_domains(model: onnx.ModelProto) -> None:
    """Import the domains that onnxruntime's optimizer uses but does not declare.

    onnxruntime itself reads such models.
    """
    used = set()
    for node in all_nodes(model.graph.node):
        if node.domain in DEFAULT_DOMAINS and node.op_type == "SimplifiedLayerNormalization":
            node.domain = _MICROSOFT
        used |= {node.domain} & {_MICROSOFT}
    for domain in used - {o.domain for o in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))


def _refuse_undefined(
    model: onnx.ModelProto, source: ModelSource, opset: int, schemas: Schemas, known_ops: set[str]
) -> None:
    """Refuse ops that ONNX itself lacks at this opset: the checker would stop at the first."""
    undefined = [n.domain in DEFAULT_DOMAINS and not schema for n, schema in schemas]
    if not any(undefined):
        return
    findings = []
    pairs = zip(model.graph.node, undefined, strict=True)
    for place, (node, absent) in enumerate(pairs, start=1):
        name, op = names_of(node)
        if absent or op not in known_ops:
            why = f"ONNX has no such op in opset {opset}" if absent else UNKNOWN_OP
            findings.append(GraphBreak(name, op, ReasonCode.UNSUPPORTED_OP, why, place))
    raise UnsupportedModel(refused(source.name, model, findings))


def _with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give all outputs a type and a rank, as onnx's checker wants; inference finds them.

    onnxruntime takes models without.
    """
    if all(_is_ranked(output) for output in model.graph.output):
        return model
    model = _copy(model)
    for output in model.graph.output:
        if not _is_ranked(output):
            tensor = output.type.tensor_type
            tensor.elem_type = tensor.elem_type or onnx.TensorProto.FLOAT
            tensor.shape.SetInParent()
    return model


def _is_ranked(info: onnx.ValueInfoProto) -> bool:
    tensor = info.type.HasField("tensor_type")
    return info.type.tensor_type.HasField("shape") if tensor else info.HasField("type")


def _check_attributes(schemas: Schemas, source: ModelSource) -> None:
    """Check that attributes have ONNX's types, which onnx's checker takes on trust."""
    for node, schema in schemas:
        for attribute in node.attribute if schema else ():
            expected = schema.attributes.get(attribute.name) if schema else None
            wanted = str(expected.type).rpartition(".")[2] if expected else ""
            found = onnx.AttributeProto.AttributeType.Name(attribute.type)
            if expected and found != wanted:
                where = f"node {names_of(node)[0]}: attribute `{attribute.name}`"
                raise bad_model(source.name, f"{where}: expected {wanted}, got {found}")


def _state_defaults_of(model: onnx.ModelProto, opset: int) -> None:
    """State defaults that an opset changed, and that an STFT is one-sided.

    onnx's inference takes an STFT without the attribute for a two-sided one.
    """
    meant: dict[str, tuple[str, Any]] = {"STFT": ("onesided", 1)}
    meant |= {"DFT": ("axis", 1)} if opset < 20 else {}
    meant |= {"RoiAlign": (_COORDINATES, "output_half_pixel")} if opset < 16 else {}
    for node in model.graph.node:
        name, value = meant.get(node.op_type, ("", None))
        stated = any(a.name == name for a in node.attribute)
        if name and node.domain in DEFAULT_DOMAINS and not stated:
            node.attribute.append(onnx.helper.make_attribute(name, value))


def _is_own(node: onnx.NodeProto, op: str) -> bool:
    return node.op_type == op and node.domain in DEFAULT_DOMAINS


def _converted(model: onnx.ModelProto, source: ModelSource, opset: int) -> onnx.ModelProto:
    # The converter flattens what a Softmax before opset 13 spans, and passes over Hardmax.
    for node in model.graph.node:
        if _is_own(node, "Hardmax"):
            node.op_type, node.name = "Softmax", f"{_HARD}{node.name}"
    try:
        converted = onnx.version_converter.convert_version(model, OLDEST)
    except NATIVE_ERRORS as error:
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{source.name}: opset {opset} could not be converted to {OLDEST}: {error}; export "
            f"the model with opset {OLDEST} or newer",
        ) from error
    given = {i.name: i.type for i in model.graph.input}
    for info in converted.graph.input:
        # onnx drops the batch from the inputs of a Scan of opset 8, and of the model with them.
        if given.get(info.name, info.type) != info.type:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{source.name}: opset {opset} could not be converted to {OLDEST} without another "
                f"shape of the input `{info.name}`; export the model with opset {OLDEST} or newer",
            )
    for node in converted.graph.node:
        if node.name.startswith(_HARD):
            node.op_type, node.name = "Hardmax", node.name.removeprefix(_HARD)
        # The defaults of Upsample and the first Resize, which onnx's converter would replace.
        if opset < _RESIZE_WITH_COORDINATES and _is_own(node, "Resize"):
            meant = {_COORDINATES: "asymmetric", "nearest_mode": SIMPLE}
            node.attribute.extend(onnx.helper.make_attribute(*pair) for pair in meant.items())
    return converted


def _inlined(model: onnx.ModelProto, opset: int, known_ops: set[str]) -> onnx.ModelProto:
    """Inline local functions, and ONNX's ops that the importer lacks but ONNX defines by others."""
    if model.functions:
        model = _with_functions_inlined(model)
    bodies, whole = set(), True
    for node in model.graph.node:
        if node.domain in DEFAULT_DOMAINS and node.op_type in known_ops:
            continue
        # The wheel's stubs lack what tells bodies.
        schema: Any = schema_of(node, opset) or _preview_schema(node, model)
        if schema and (schema.has_function or schema.has_context_dependent_function):
            bodies.add((node.domain, node.op_type))
            whole &= "" not in node.input
            # onnx's inliner drops references to attributes that are left out.
            given = {a.name for a in node.attribute}
            every = ((name, a.default_value) for name, a in schema.attributes.items())
            node.attribute.extend(v for name, v in every if name not in given and v.type)
    if not bodies:
        return model
    # onnx's inliner looks for the initializers' types among other values' types.
    declared = {i.name for i in (*model.graph.input, *model.graph.value_info)}
    model.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in model.graph.initializer
        if t.name not in declared
    )
    try:
        if whole:
            return onnx.inliner.inline_selected_functions(
                model, sorted(bodies), inline_schema_functions=True
            )
        return _inlined_one_by_one(model, opset, bodies)
    except NATIVE_ERRORS:
        # Bodies that depend on types which onnx could not infer: the ops stay, and are reported.
        return model


def _preview_schema(node: onnx.NodeProto, model: onnx.ModelProto) -> onnx.defs.OpSchema | None:
    """Return the definition of an op that ONNX previews in a domain of its own, else None."""
    versions = [o.version for o in model.opset_import if o.domain == node.domain]
    if node.domain != _PREVIEW or not versions:
        return None
    if not onnx.defs.has(node.op_type, max(versions), _PREVIEW):
        return None
    return onnx.defs.get_schema(node.op_type, max(versions), _PREVIEW)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    out = onnx.ModelProto()
    out.CopyFrom(model)
    return out


def _inlined_one_by_one(
    model: onnx.ModelProto, opset: int, bodies: Container[tuple[str, str]]
) -> onnx.ModelProto:
    """Replace ONNX's functions by functions of the model's own.

    onnx's inliner reads the type of an optional input that is left out, and fails.
    """
    inferred = onnx.shape_inference.infer_shapes(model).graph
    model = _copy(model)  # Given back untouched where a function is not to be had.
    types = {i.name: i.type for i in (*inferred.input, *inferred.value_info, *inferred.output)}
    for place, node in enumerate(model.graph.node):
        schema: Any = schema_of(node, opset) or _preview_schema(node, model)
        if schema is None or (node.domain, node.op_type) not in bodies:
            continue
        function = onnx.FunctionProto()
        if schema.has_context_dependent_function:
            given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
            body = schema.get_context_dependent_function_with_opset_version(
                opset, node.SerializeToString(), given
            )
            function.ParseFromString(body)
        else:
            function.CopyFrom(schema.function_body)
        function.name, function.domain = f"{node.op_type}_{place}", _OWN_DOMAIN
        node.op_type, node.domain = function.name, _OWN_DOMAIN
        if not function.opset_import:
            function.opset_import.extend(model.opset_import)
        model.functions.append(function)
    if all(o.domain != _OWN_DOMAIN for o in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_OWN_DOMAIN, 1))
    return onnx.inliner.inline_local_functions(model)


def _with_functions_inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without its own functions; its nodes may get attributes.

    onnx's inliner puts a function's body in place of a call, and drops an attribute of the body
    that refers to one which the call does not give. It does not know the defaults that a function
    states for its attributes, so these are stated at the calls first.
    """
    if not any(function.attribute_proto for function in model.functions):
        return onnx.inliner.inline_local_functions(model)
    # One function at a time, callers first: only then is it known what a call inside of another
    # function gives.
    for name in _callers_first(model):
        functions = [f for f in model.functions if (f.domain, f.name) == name]
        _state_function_defaults(all_nodes(model.graph.node), functions)
        model = onnx.inliner.inline_selected_functions(model, [name])
    return model


def _callers_first(model: onnx.ModelProto) -> list[tuple[str, str]]:
    bodies: dict[tuple[str, str], list[onnx.NodeProto]] = {}
    for function in model.functions:
        bodies.setdefault((function.domain, function.name), []).extend(function.node)
    done: dict[tuple[str, str], None] = {}

    def visit(nodes: Sequence[onnx.NodeProto]) -> None:
        for node in all_nodes(nodes):
            name = node.domain, node.op_type
            if name in bodies and name not in done:
                visit(bodies[name])
                done[name] = None

    visit(model.graph.node)
    return list(reversed(done))


def _state_function_defaults(
    nodes: Iterable[onnx.NodeProto], functions: Iterable[onnx.FunctionProto]
) -> None:
    by_name = {(f.domain, f.name, f.overload): f for f in functions}
    for node in nodes:
        function = by_name.get((node.domain, node.op_type, node.overload))
        if function is not None:
            given = {a.name for a in node.attribute}
            node.attribute.extend(a for a in function.attribute_proto if a.name not in given)


def _shape_error(model: onnx.ModelProto) -> Exception | None:
    """Return why the nodes' types, attributes and shapes contradict each other; else None.

    Data is not propagated as onnx does, for which a tensor of a terabyte is a list of as many
    sizes. onnx takes the product of a size and a scale of a Resize exactly, and onnxruntime in f32,
    in which 10 * 0.7 is 7. If onnx objects, the sizes of such results are stated and the check is
    repeated.
    """
    error = _strict_error(model)
    if error is None:
        return None
    stated = _with_sizes_of_resizes(model)
    return error if stated is None or _strict_error(stated) is not None else None


def _strict_error(model: onnx.ModelProto) -> Exception | None:
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except NATIVE_ERRORS as error:
        return error
    return None


def _with_sizes_of_resizes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy with sizes in place of Resize's constant scales; None if none has any."""
    made = _copy(model)
    scales = {t.name: t for t in made.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    found = False
    for number, node in enumerate(made.graph.node):
        known = scales.get(node.input[2]) if len(node.input) > 2 else None
        if _is_own(node, "Resize") and known is not None:
            sizes = _sizes(made, node, onnx.numpy_helper.to_array(known).reshape(-1))
            if not sizes:
                return None
            name = f"sizes of Resize {number}"
            values = np.array(list(sizes.values()), np.int64)
            made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
            node.input[:] = [node.input[0], node.input[1], "", name]
            kept = [a for a in node.attribute if a.name != "axes"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("axes", list(sizes))])
            found = True
    return made if found else None


def _sizes(model: onnx.ModelProto, node: onnx.NodeProto, scales: np.ndarray) -> dict[int, int]:
    """Return by axis the result of a Resize of known sizes; none of a malformed node."""
    bare = _copy(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(bare).graph
    except NATIVE_ERRORS:
        return {}
    types = {i.name: i.type.tensor_type for i in (*graph.input, *graph.value_info)}
    dims = types[node.input[0]].shape.dim if node.input[0] in types else ()
    axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), range(len(dims)))
    legal = len(axes) == len(scales) and all(-len(dims) <= a < len(dims) for a in axes)
    if not legal or not (np.isfinite(scales) & (scales > 0)).all():
        return {}
    pairs = zip(axes, scales, strict=True)
    known = [(a, s, dims[a].dim_value) for a, s in pairs if dims[a].HasField("dim_value")]
    return {a: int(np.float32(size) * s) for a, s, size in known}
