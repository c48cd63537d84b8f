"""From a file, bytes or a ModelProto to a checked model of an opset that the importer reads.

Checks, in this order: the protobuf parses; the opset is at most `NEWEST`; onnx's checker accepts
it; external weights lie inside the model's directory; older opsets convert to `OLDEST`; functions
are inlined; the shapes and types fit (onnx's shape inference in strict mode).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError, Message

from pyc_mlir.dialects.errors import PycError, ReasonCode

OLDEST, NEWEST = 13, 23
UNKNOWN_OP = "PyC does not know this op"
_DEFAULT_DOMAINS = ("", "ai.onnx")
# Weights above this many bytes say nothing about shapes: shape inference does without them.
_SHAPE_BYTES = 1024


@dataclass(frozen=True)
class Source:
    """Where a model came from: the name for messages and locations, and its directory if any."""

    name: str
    directory: Path | None


@dataclass(frozen=True)
class Finding:
    """One node that cannot be imported."""

    node: str
    op: str
    code: ReasonCode
    why: str

    def __str__(self) -> str:
        return f"{self.node} ({self.op}): {self.code.name}: {self.why}"


class UnsupportedModel(PycError):
    """A model with nodes that PyC cannot import: `findings` has them all, in graph order.

    The code is theirs when they agree, else UNSUPPORTED_OP.
    """

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        codes = {f.code for f in findings}
        code = codes.pop() if len(codes) == 1 else ReasonCode.UNSUPPORTED_OP
        lines = "".join(f"\n  {f}" for f in findings)
        count = f"{len(findings)} node{'s' if len(findings) > 1 else ''}"
        super().__init__(code, f"{name}: {count} cannot be imported:{lines}\n{code.remedy}")
        self.findings = tuple(findings)


def read_model(model: str | Path | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, Source]:
    """The protobuf, not yet checked. Raises PycError (BAD_ARGUMENT, BAD_MODEL)."""
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy, Source("<onnx>", None)
    if isinstance(model, bytes):
        return _parse(model, "<onnx>"), Source("<onnx>", None)
    path = Path(model)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{path}: expected a readable ONNX file, got: {error.strerror}"
        ) from error
    return _parse(data, str(path)), Source(str(path), path.resolve().parent)


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise bad_model(
            name, f"expected an ONNX protobuf, got {len(data)} bytes: {error}"
        ) from error
    for text in _texts(model):
        # The protobuf runtime hands out bytes for a string that is not UTF-8.
        if not isinstance(text, str):
            raise bad_model(name, f"expected names in UTF-8, got {text!r}")
    return model


def _texts(message: Message) -> Iterator[str | bytes]:
    """Every string field of a message and of the messages in it."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.type == field.TYPE_STRING:
            yield from values
        elif field.type == field.TYPE_MESSAGE:
            for inner in values:
                yield from _texts(inner)


def bad_model(name: str, problem: str) -> PycError:
    """The error for a malformed model."""
    return PycError(ReasonCode.BAD_MODEL, f"{name}: {problem.strip()}; export the model again")


def opset_of(model: onnx.ModelProto) -> int | None:
    """The version of ONNX's default domain that the model imports."""
    versions = [o.version for o in model.opset_import if o.domain in _DEFAULT_DOMAINS]
    return max(versions, default=None)


def is_default_domain(node: onnx.NodeProto) -> bool:
    """True for an op of ONNX's own domain."""
    return node.domain in _DEFAULT_DOMAINS


def schema_of(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """ONNX's definition of the node's op at `opset`, or None."""
    if is_default_domain(node) and onnx.defs.has(node.op_type, opset, ""):
        return onnx.defs.get_schema(node.op_type, opset, "")
    return None


def prepare(model: onnx.ModelProto, source: Source, known_ops: set[str]) -> onnx.ModelProto:
    """The model checked, converted and with functions inlined down to `known_ops` where possible.

    Raises PycError: BAD_MODEL, or UNSUPPORTED_OP for an opset that is out of reach.
    """
    opset = opset_of(model)
    if opset is not None and opset > NEWEST:
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{source.name}: expected opset {OLDEST} to {NEWEST} (older ones are converted), got "
            f"{opset}; export the model with opset {NEWEST}",
        )
    load_external_data(model, source)
    _refuse_undefined(model, source, opset or NEWEST, known_ops)
    _check(model, source)
    _check_attributes(model, source, opset or NEWEST)
    if opset is not None and opset < OLDEST:
        model, opset = _converted(model, source, opset), OLDEST
    model = _inlined(model, opset or NEWEST, known_ops)
    _infer(model, source)
    return model


def node_name(node: onnx.NodeProto) -> str:
    """The node's name; without one its op and first output."""
    return node.name or f"{node.op_type}:{next(iter(node.output), '')}"


def qualified_op(node: onnx.NodeProto) -> str:
    """The op type, with its domain unless that is ONNX's own."""
    return node.op_type if is_default_domain(node) else f"{node.domain}.{node.op_type}"


def _refuse_undefined(
    model: onnx.ModelProto, source: Source, opset: int, known_ops: set[str]
) -> None:
    """Ops that ONNX itself lacks at this opset: the checker would stop at the first of them."""
    undefined = [is_default_domain(n) and not schema_of(n, opset) for n in model.graph.node]
    if not any(undefined):
        return
    findings = []
    for node, absent in zip(model.graph.node, undefined, strict=True):
        if absent or node.op_type not in known_ops or not is_default_domain(node):
            why = f"ONNX has no such op in opset {opset}" if absent else UNKNOWN_OP
            code = ReasonCode.UNSUPPORTED_OP
            findings.append(Finding(node_name(node), qualified_op(node), code, why))
    raise UnsupportedModel(source.name, findings)


def _check(model: onnx.ModelProto, source: Source) -> None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise bad_model(source.name, f"expected a valid ONNX model, got: {error}") from error


def _check_attributes(model: onnx.ModelProto, source: Source, opset: int) -> None:
    """Attributes have the type that ONNX gives them, which onnx's checker takes on trust."""
    for node in model.graph.node:
        schema = schema_of(node, opset)
        for attribute in node.attribute if schema else ():
            expected = schema.attributes.get(attribute.name) if schema else None
            wanted = str(expected.type).rpartition(".")[2] if expected else ""
            found = onnx.AttributeProto.AttributeType.Name(attribute.type)
            if expected and found != wanted:
                raise bad_model(
                    source.name,
                    f"node {node_name(node)}: attribute `{attribute.name}`: expected {wanted}, "
                    f"got {found}",
                )


def _converted(model: onnx.ModelProto, source: Source, opset: int) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(model, OLDEST)
    except RuntimeError as error:
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{source.name}: opset {opset} could not be converted to {OLDEST}: {error}; export "
            f"the model with opset {OLDEST} or newer",
        ) from error


def _inlined(model: onnx.ModelProto, opset: int, known_ops: set[str]) -> onnx.ModelProto:
    """Model-local functions, and ONNX's ops that the importer lacks but ONNX defines by others."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    bodies = set()
    for node in model.graph.node:
        schema = schema_of(node, opset)
        if schema and node.op_type not in known_ops and _has_body(schema):
            bodies.add(("", node.op_type))
            _state_defaults(node, schema)
    if not bodies:
        return model
    try:
        return onnx.inliner.inline_selected_functions(
            model, sorted(bodies), inline_schema_functions=True
        )
    except RuntimeError:
        # Bodies that depend on types which onnx could not infer: the ops stay, and are reported.
        return model


def _state_defaults(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Write out attributes that have a default: onnx's inliner drops references to missing ones."""
    given = {a.name for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            node.attribute.append(attribute.default_value)


def _has_body(schema: onnx.defs.OpSchema) -> bool:
    # The wheel's stubs lack these two.
    return any(
        getattr(schema, f"has_{kind}") for kind in ("function", "context_dependent_function")
    )


def _infer(model: onnx.ModelProto, source: Source) -> None:
    """Raise BAD_MODEL when the nodes' types, attributes and shapes contradict each other."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph, original = light.graph, model.graph
    graph.name = original.name
    graph.node.extend(original.node)
    graph.input.extend(original.input)
    graph.output.extend(original.output)
    named = {i.name for i in original.input}
    for tensor in original.initializer:
        if tensor.ByteSize() <= _SHAPE_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in named:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    try:
        onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise bad_model(source.name, f"expected types and shapes that fit, got: {error}") from error


def load_external_data(model: onnx.ModelProto, source: Source) -> None:
    """Read tensors that are stored in other files, all inside the model's own directory.

    Raises PycError (BAD_MODEL) for any other place and for files that are missing or too short.
    """
    for tensor in _tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        fields = {e.key: e.value for e in tensor.external_data}
        path = _inside(fields.get("location", ""), source, tensor.name)
        try:
            offset, length = int(fields.get("offset", 0)), int(fields.get("length", -1))
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(length)
        except (OSError, ValueError) as error:
            raise bad_model(source.name, f"weights `{tensor.name}`: {error}") from error
        if length >= 0 and len(data) != length:
            raise bad_model(
                source.name, f"weights `{tensor.name}`: expected {length} bytes, got {len(data)}"
            )
        tensor.raw_data = data
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT


def _inside(location: str, source: Source, name: str) -> Path:
    """The file at `location` if it lies in the model's directory, links followed."""
    if source.directory is None:
        raise bad_model(
            source.name,
            f"weights `{name}` are in the file {location!r}: give the model by its path",
        )
    path = (source.directory / location).resolve()
    if not location or not path.is_relative_to(source.directory) or not path.is_file():
        raise bad_model(
            source.name,
            f"weights `{name}`: expected a file inside the model's directory, got {location!r}",
        )
    return path


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the graph: initializers and node attributes."""
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def external_files(model: onnx.ModelProto) -> list[str]:
    """The files beside a model, not yet read, that hold weights of it; sorted."""
    outside = (t for t in _tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL)
    return sorted({e.value for t in outside for e in t.external_data if e.key == "location"})
