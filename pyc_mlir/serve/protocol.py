"""The messages of the open inference protocol v2: requests to arrays, results to responses.

A tensor's data is a list in the JSON, or binary: raw little-endian bytes after the JSON, whose
length the header ``Inference-Header-Content-Length`` gives (the binary tensor data extension).

Source: the Open Inference Protocol v2 (KServe), and Triton's extension for binary data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from reprlib import Repr
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import BOOL, DTYPES, dtype_name, is_float
from pyc_mlir.dialects.util.json_input import parse_json

HEADER_LENGTH = "inference-header-content-length"
_WIDTHS = {f"i{n}": f"INT{n}" for n in (8, 16, 32, 64)}
_WIDTHS |= {f"ui{n}": f"UINT{n}" for n in (8, 16, 32, 64)}
DATATYPES = {"i1": "BOOL", "f16": "FP16", "bf16": "BF16", "f32": "FP32", "f64": "FP64"} | _WIDTHS
_DTYPES = {text: DTYPES[name] for name, text in DATATYPES.items()}
# Types whose data JSON numbers do not carry: binary only.
_BINARY_ONLY = ("FP16", "BF16")
# The product of a shape's sizes that are not 0, where one is: such a tensor needs no data, and a
# program may make large results of it.
_MOST_EMPTY = 1 << 20
_MOST_RANK = 32
_MOST_TIMEOUT = 24 * 3600 * 10**6
# Parameters of extensions that the server does not have, by how their names begin: without them
# another answer would come than was asked for. Each with its remedy.
_LACKING = {
    "classification": "ask for the whole result, and choose its classes in the client",
    "shared_memory_": "send tensors in the request, as lists or as binary data",
    "sequence_": "send a whole sequence at once: calls keep no state",
}
_SHORT = Repr()
_SHORT.maxstring = 80
_shown = _SHORT.repr


@dataclass(frozen=True, eq=False)
class InferRequest:
    """A request for one model: its arrays in the order of the signature.

    outputs: the results that are wanted, by number, and whether each comes as binary data.
    timeout_seconds: after which the client does not want the answer any more.
    """

    inputs: Sequence[np.ndarray]
    outputs: Sequence[tuple[int, bool]]
    id: str = ""
    timeout_seconds: float | None = None


def datatype(dtype: np.dtype) -> str:
    """Return the protocol's name of an element type, or PyC's where it has none."""
    name = dtype_name(dtype)
    return DATATYPES.get(name, name)


def metadata(name: str, version: str, signature: Signature) -> dict[str, Any]:
    """Return the metadata of a model; unknown dimensions are -1."""
    return {
        "name": name,
        "versions": [version],
        "platform": "pyc",
        "inputs": [_tensor(e) for e in signature.inputs],
        "outputs": [_tensor(e) for e in signature.outputs],
    }


def _tensor(entry: SignatureEntry) -> dict[str, Any]:
    shape = [d if isinstance(d, int) else -1 for d in entry.shape]
    return {"name": entry.name, "datatype": datatype(entry.dtype), "shape": shape}


def unknown_address(method: str, path: str, expected: str) -> PycError:
    """Return the error of a request to an address, or by a method, that the server lacks."""
    got = f"{method[:20]} {path[:80]}"
    return PycError(ReasonCode.UNKNOWN_ADDRESS, where="address", expected=expected, got=got)


def read_object(data: bytes, known: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Read a JSON object. Raises PycError (BAD_ARGUMENT), also for fields that are not known."""
    try:
        found = _mapping(parse_json(data), "request")
    except ValueError as error:
        raise _bad("request", "JSON", str(error)) from None
    if known is not None and not set(found) <= set(known):
        fields = f"no fields but {', '.join(known)}" if known else "no fields"
        raise _bad("request", fields, _shown([*found]), "leave out what the server does not do")
    return found


def read_request(body: bytes, header_length: str | None, signature: Signature) -> InferRequest:
    """Read a request. Raises PycError (BAD_ARGUMENT) that names the part that is wrong.

    Sizes are compared with the program by its own guards later, on the arrays.
    """
    length = len(body) if header_length is None else _number(header_length, len(body))
    view = memoryview(body)
    head = read_object(bytes(view[:length]))
    parameters = _parameters(head, "parameters")
    tensors = _sequence(head.get("inputs"), "inputs")
    rest, arrays = view[length:], dict[str, np.ndarray]()
    for tensor in (_mapping(t, "inputs") for t in tensors):
        name = tensor.get("name")
        if not isinstance(name, str) or name in arrays:
            raise _bad("inputs", "tensors of different names", _shown(name))
        arrays[name], rest = _array(name, tensor, rest)
    if len(rest):
        raise _bad("request", "binary data of the inputs alone", f"{len(rest)} bytes more")
    names = [e.name for e in signature.inputs]
    if set(arrays) != set(names):
        raise _bad("inputs", f"the tensors {', '.join(names)}", ", ".join(arrays) or "none")
    inputs = [arrays[n] for n in names]
    timeout = parameters.get("timeout")
    if timeout is not None and not (type(timeout) is int and 0 < timeout <= _MOST_TIMEOUT):
        raise _bad("parameters: timeout", f"1 to {_MOST_TIMEOUT} microseconds", _shown(timeout))
    binary = _flag(parameters, "binary_data_output", False)
    own = head.get("id", "")
    if not isinstance(own, str):
        raise _bad("id", "a string", type(own).__name__)
    return InferRequest(
        inputs,
        _wanted(head.get("outputs"), signature, binary),
        own,
        None if timeout is None else timeout / 1e6,
    )


def _array(name: str, tensor: Mapping[str, Any], rest: memoryview) -> tuple[np.ndarray, memoryview]:
    """Return a tensor, and the binary data that is left for those after it."""
    at, kind = f"`{name[:80]}`", tensor.get("datatype")
    dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise _bad(f"{at}: datatype", f"one of {', '.join(sorted(_DTYPES))}", _shown(kind))
    shape = _sequence(tensor.get("shape"), f"{at}: shape")
    if not all(type(d) is int and 0 <= d < 1 << 63 for d in shape) or len(shape) > _MOST_RANK:
        raise _bad(f"{at}: shape", f"up to {_MOST_RANK} sizes of 0 or more", _shown(shape))
    if 0 in shape and prod(d for d in shape if d) > _MOST_EMPTY:
        most = f"at most {_MOST_EMPTY} by its other sizes, as there are no elements"
        raise _bad(f"{at}: shape", most, _shown(shape))
    parameters = _parameters(tensor, f"{at}: parameters")
    size = parameters.get("binary_data_size")
    elements = prod(shape)
    if size is not None:
        if type(size) is not int or size != elements * dtype.itemsize or size > len(rest):
            have = f"binary_data_size {_shown(size)} and {len(rest)} bytes left"
            raise _bad(at, f"{elements * dtype.itemsize} bytes of {kind}{shape}", have)
        array = np.frombuffer(rest[:size], dtype).reshape(shape)
        if dtype == BOOL and array.size and (most := int(array.view(np.uint8).max())) > 1:
            raise _bad(at, f"bytes of 0 and 1 for {kind}", str(most))
        return array, rest[size:]
    if kind in _BINARY_ONLY:
        raise _bad(at, f"{kind} as binary data", "a list")
    data = _listed(_sequence(tensor.get("data"), f"{at}: data"), shape, f"{at}: data")
    return _of_kind(data, dtype, f"{at}: data").reshape(shape), rest


def _listed(data: list[Any], shape: Sequence[int], where: str) -> list[Any]:
    """Return the elements of a list that is flat, or nested as the shape."""
    while len(shape) > 1 and data and isinstance(data[0], list):
        rows, columns = shape[:2]
        if len(data) != rows or not all(isinstance(d, list) and len(d) == columns for d in data):
            raise _bad(where, f"lists that nest as {list(shape)}, or one list", "others")
        data, shape = [element for row in data for element in row], [rows * columns, *shape[2:]]
    if len(data) != prod(shape):
        raise _bad(where, f"{prod(shape)} elements, as its shape says", str(len(data)))
    return data


def _of_kind(data: list[Any], dtype: np.dtype, where: str) -> np.ndarray:
    """Return the elements as an array; nothing is cut, rounded to an integer or taken for another
    kind."""
    kinds, name = set(map(type, data)), datatype(dtype)
    allowed = {bool} if dtype == BOOL else {int, float} if is_float(dtype) else {int}
    if not kinds <= allowed:
        found = ", ".join(sorted(k.__name__ for k in kinds - allowed))
        raise _bad(where, f"{' and '.join(sorted(k.__name__ for k in allowed))} for {name}", found)
    try:
        with np.errstate(over="ignore"):
            array = np.array(data, dtype=dtype)
    except OverflowError as error:
        raise _bad(where, f"numbers that {name} holds", str(error)[:200]) from None
    if is_float(dtype) and not np.isfinite(array).all():
        raise _bad(where, f"finite numbers that {name} holds; send others as binary data", "others")
    return array


def _wanted(outputs: Any, signature: Signature, binary: bool) -> list[tuple[int, bool]]:
    names = {e.name: i for i, e in enumerate(signature.outputs)}
    if outputs is None:
        return [(i, binary) for i in names.values()]
    found = []
    for output in (_mapping(o, "outputs") for o in _sequence(outputs, "outputs")):
        name = output.get("name")
        if not isinstance(name, str) or name not in names:
            raise _bad("outputs", f"names out of {', '.join(names)}", _shown(name))
        parameters = _parameters(output, "outputs: parameters")
        found.append((names[name], _flag(parameters, "binary_data", binary)))
    return found


def _flag(parameters: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    value = parameters.get(name, otherwise)
    if not isinstance(value, bool):
        raise _bad(f"parameters: {name}", "true or false", _shown(value))
    return value


def write_response(
    model: str, version: str, request: InferRequest, signature: Signature, results: Sequence[Any]
) -> tuple[int | None, list[bytes]]:
    """Return the length of the JSON where binary data follows it, and the parts of the body.

    Raises PycError (BAD_ARGUMENT) for NaN and infinities that were not asked for as binary data.
    """
    tensors, data = [], []
    for number, binary in request.outputs:
        entry, array = signature.outputs[number], np.asarray(results[number], order="C")
        kind = datatype(entry.dtype)
        tensor = {"name": entry.name, "datatype": kind, "shape": list(array.shape)}
        if binary or kind in _BINARY_ONLY:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            data.append(array.tobytes())
        else:
            if is_float(array.dtype) and not np.isfinite(array).all():
                what = "finite numbers, as JSON has no others; ask for it as binary data"
                raise _bad(f"outputs: `{entry.name}`", what, "NaN or infinities")
            tensor["data"] = array.reshape(-1).tolist()
        tensors.append(tensor)
    head: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": tensors}
    if request.id:
        head["id"] = request.id
    text = json.dumps(head, separators=(",", ":")).encode()
    return (len(text) if data else None), [text, *data]


def _number(text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) > most:
        raise _bad(HEADER_LENGTH, f"a number up to the body's {most} bytes", _shown(text))
    return int(text)


def _parameters(holder: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the parameters of a request or a tensor; none asks for what the server cannot do."""
    found = _mapping(holder.get("parameters", {}), where)
    for start, remedy in _LACKING.items():
        asked = [name for name in found if name.startswith(start)]
        if asked:
            raise _bad(where, "extensions that GET /v2 lists", _shown(asked[0]), remedy)
    return found


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _bad(where, "an object", type(value).__name__)
    return value


def _sequence(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _bad(where, "a list", type(value).__name__)
    return value


def _bad(where: str, expected: str, got: str, remedy: str = "") -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT, where=where, expected=expected, got=got[:200], remedy=remedy
    )
