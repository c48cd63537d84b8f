"""The messages of the open inference protocol, and batches of requests; no HTTP, no program."""

import json
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from refusals import refused

from pyc_mlir import PycError, ReasonCode
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.serve.batching import Batcher, Waiting
from pyc_mlir.serve.protocol import metadata, read_request, write_response
from pyc_mlir.serve.rows import most_rows

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
SIGNATURE = Signature(
    (SignatureEntry("x", F32, ("n", 2)), SignatureEntry("k", I64, ("n",))),
    (SignatureEntry("y", F32, ("n", 2)),),
    {"n": (1, 8)},
)
X, K = np.arange(4, dtype=F32).reshape(2, 2), np.array([3, -1])
TENSORS = [
    {"name": "k", "datatype": "INT64", "shape": [2], "data": [3, -1]},
    {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[0, 1], [2, 3]]},
]


BINARY = {"name": "x", "datatype": "FP32", "shape": [2, 2]}


def body(**changes) -> bytes:
    return json.dumps({"inputs": TENSORS} | changes).encode()


def test_tensors_come_as_lists_in_any_order():
    request = read_request(body(id="7", parameters={"timeout": 2000}), None, SIGNATURE)
    assert (request.inputs[0] == X).all() and (request.inputs[1] == K).all()
    assert request.inputs[0].dtype == F32 and request.inputs[1].dtype == I64
    assert (request.id, request.timeout_seconds) == ("7", 0.002)
    assert list(request.outputs) == [(0, False)]


def test_tensors_come_as_bytes_after_the_json():
    parameters = {"binary_data_size": X.nbytes}
    binary = {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": parameters}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    head = body(inputs=[TENSORS[0], binary], outputs=outputs)
    request = read_request(head + X.tobytes(), str(len(head)), SIGNATURE)
    assert (request.inputs[0] == X).all() and list(request.outputs) == [(0, True)]
    length, parts = write_response("m", "1", request, SIGNATURE, [X])
    assert length == len(parts[0]) and parts[1] == X.tobytes()
    assert json.loads(parts[0])["outputs"][0]["parameters"] == {"binary_data_size": X.nbytes}


def test_results_come_as_lists():
    request = read_request(body(), None, SIGNATURE)
    length, (text,) = write_response("m", "2", request, SIGNATURE, [X])
    y = {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [0.0, 1.0, 2.0, 3.0]}
    assert length is None
    assert json.loads(text) == {"model_name": "m", "model_version": "2", "outputs": [y]}


def changed(**changes) -> bytes:
    return body(inputs=[TENSORS[0], TENSORS[1] | changes])


def integers(kind: str, data: list) -> bytes:
    return body(inputs=[TENSORS[0] | {"datatype": kind, "data": data}, TENSORS[1]])


@pytest.mark.parametrize(
    ("data", "length", "message"),
    [
        (b"{", None, "request: expected JSON"),
        (b"[]", None, "request: expected an object, got list"),
        (b"{}", None, "inputs: expected a list, got NoneType"),
        (body(inputs=TENSORS[:1]), None, "inputs: expected the tensors x, k, got k"),
        (body(inputs=[TENSORS[0]] * 2), None, "inputs: expected tensors of different names"),
        (changed(datatype="BYTES"), None, "`x`: datatype: expected one of"),
        (changed(datatype=["FP32"]), None, "`x`: datatype: expected one of"),
        (changed(shape=[2, -2]), None, "`x`: shape: expected up to 32 sizes of 0 or more"),
        (
            changed(shape=[2, 3], data=[1] * 4),
            None,
            "`x`: data: expected 6 elements, as its shape says, got 4",
        ),
        (changed(data=[["a", 1], [2, 3]]), None, "`x`: data: expected float and int for FP32"),
        (changed(data=[True, 1, 2, 3]), None, "for FP32, got bool"),
        (changed(data=[None, 1, 2, 3]), None, "for FP32, got NoneType"),
        (changed(data=[[1], [2, 3]]), None, "`x`: data: expected lists that nest as [2, 2]"),
        (changed(data=[[[1], [2]], [3, 4]]), None, "for FP32, got list"),
        (changed(data=[1e300, 1, 2, 3]), None, "expected finite numbers that FP32 holds"),
        (changed(data=[float("nan"), 1, 2, 3]), None, "send others as binary data"),
        (changed(data=[10**400, 1, 2, 3]), None, "expected numbers that FP32 holds"),
        (integers("INT64", [0.5, 1]), None, "`k`: data: expected int for INT64, got float"),
        (integers("INT64", ["3", 1]), None, "`k`: data: expected int for INT64, got str"),
        (integers("INT8", [128, 1]), None, "`k`: data: expected numbers that INT8 holds"),
        (integers("UINT8", [-1, 1]), None, "`k`: data: expected numbers that UINT8 holds"),
        (integers("BOOL", [0, 1]), None, "`k`: data: expected bool for BOOL, got int"),
        (changed(shape=[1 << 40, 1 << 40], data=[]), None, "elements, as its shape says, got 0"),
        (changed(shape=[1 << 40, 0], data=[]), None, "at most 1048576 by its other sizes"),
        (changed(shape=[1] * 33, data=[1]), None, "expected up to 32 sizes"),
        (body(id=7), None, "id: expected a string, got int"),
        (body(parameters={"binary_data_output": "no"}), None, "expected true or false"),
        (changed(datatype="FP16"), None, "`x`: expected FP16 as binary data"),
        (changed(parameters={"binary_data_size": 8}), None, "`x`: expected 16 bytes of FP32"),
        (changed(parameters={"binary_data_size": 16}), None, "16 and 0 bytes left"),
        (body(outputs=[{"name": "z"}]), None, "outputs: expected names out of y, got 'z'"),
        (body(parameters={"timeout": 0}), None, "parameters: timeout: expected 1 to"),
        (body() + b"1234", str(len(body())), "expected binary data of the inputs alone, got 4"),
        (body(), "9999999", "inference-header-content-length: expected a number up to"),
        (body(), "-1", "inference-header-content-length: expected a number up to"),
        (body(), "9" * 5000, "inference-header-content-length: expected a number up to"),
        (changed(parameters={"binary_data_size": 16.0}), None, "`x`: expected 16 bytes of FP32"),
        (changed(shape=[10**4000] * 2), None, "`x`: shape: expected up to 32 sizes"),
        (body(outputs=[{"name": []}]), None, "outputs: expected names out of y, got []"),
        (
            body(outputs=[{"name": "y", "parameters": {"classification": 2}}]),
            None,
            "got 'classification'; ask for the whole result",
        ),
        (
            changed(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 16}),
            None,
            "got 'shared_memory_region'; send tensors in the request",
        ),
        (body(parameters={"sequence_id": 7}), None, "got 'sequence_id'; send a whole sequence"),
        (b"\xff", None, "request: expected JSON"),
        (b"[" * 100000, None, "request: expected JSON"),
    ],
)
def test_what_is_no_request_is_named(data, length, message):
    error = refused(ReasonCode.BAD_ARGUMENT, read_request, data, length, SIGNATURE)
    assert message in error.message


WHOLE = {
    "id": "7",
    "parameters": {"timeout": 5, "binary_data_output": True},
    "inputs": [
        TENSORS[0] | {"parameters": {}},
        {**BINARY, "parameters": {"binary_data_size": 16}},
    ],
    "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
}
DEEP = json.loads("[" * 900 + "]" * 900)
NUMBERS = (0, 1, -1, 12.0, 16.0, 0.5, 1e300, float("nan"), 2**63, -(2**63), 10**4000)
TEXTS = ("", "y", "\ud800", "\x1b[2J", "9" * 5000)
OBJECTS = ([], {}, [[]], [{}], {"a": 1}, [1, 2], ["y"], [10**4000] * 2, [1 << 62, 1 << 62], DEEP)


def places(value, path: tuple = ()) -> Iterator[tuple]:
    yield path
    if isinstance(value, dict | list):
        for key in range(len(value)) if isinstance(value, list) else value:
            yield from places(value[key], (*path, key))


def replaced(value, path: tuple, new):
    if not path:
        return new
    found = value.copy()
    found[path[0]] = replaced(value[path[0]], path[1:], new)
    return found


@pytest.mark.parametrize("path", list(places(WHOLE)), ids=str)
def test_any_json_in_any_field_is_read_or_refused(path):
    """And a refusal stays short, whatever came."""
    for new in (None, True, False, *NUMBERS, *TEXTS, *OBJECTS):
        head = json.dumps(replaced(WHOLE, path, new)).encode()
        try:
            read_request(head + X.tobytes(), str(len(head)), SIGNATURE)
        except PycError as error:
            assert error.code is ReasonCode.BAD_ARGUMENT and len(error.message) < 600


def test_a_scalar_keeps_its_shape():
    entry = SignatureEntry("s", F32, ())
    signature = Signature((entry,), (entry,))
    tensor = {"name": "s", "datatype": "FP32", "shape": [], "data": [2.5]}
    request = read_request(json.dumps({"inputs": [tensor]}).encode(), None, signature)
    _, (text,) = write_response("m", "1", request, signature, request.inputs)
    assert json.loads(text)["outputs"] == [tensor]


def test_bytes_of_booleans_are_0_or_1():
    entry = SignatureEntry("b", np.dtype(bool), (2,))
    parameters = {"binary_data_size": 2}
    tensor = {"name": "b", "datatype": "BOOL", "shape": [2], "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    signature = Signature((entry,), (entry,))
    assert list(read_request(head + b"\1\0", str(len(head)), signature).inputs[0]) == [True, False]
    with pytest.raises(PycError, match="expected bytes of 0 and 1 for BOOL, got 255"):
        read_request(head + b"\1\xff", str(len(head)), signature)


def test_booleans_and_nested_lists():
    entry = SignatureEntry("b", np.dtype(bool), (1, 2, 2))
    signature = Signature((entry,), (entry,))
    tensor = {"name": "b", "datatype": "BOOL", "shape": [1, 2, 2]}
    for data in ([[[True, False], [False, True]]], [True, False, False, True]):
        request = read_request(
            json.dumps({"inputs": [tensor | {"data": data}]}).encode(), None, signature
        )
        assert request.inputs[0].dtype == bool and request.inputs[0].sum() == 2
    _, (text,) = write_response("m", "1", request, signature, request.inputs)
    assert json.loads(text)["outputs"][0]["data"] == [True, False, False, True]


@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_json_has_no_other_numbers(value):
    request = read_request(body(), None, SIGNATURE)
    with pytest.raises(PycError, match="ask for it as binary data"):
        write_response("m", "1", request, SIGNATURE, [np.full((2, 2), value, F32)])
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    request = read_request(body(outputs=outputs), None, SIGNATURE)
    length, parts = write_response("m", "1", request, SIGNATURE, [np.full((2, 2), value, F32)])
    assert length and len(parts[1]) == 16


def test_metadata_names_unknown_sizes():
    x, k = metadata("m", "1", SIGNATURE)["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [-1, 2]} and k["datatype"] == "INT64"


def rows_of(*shapes, results=((None, 2),), **ranges) -> Signature:
    inputs = tuple(SignatureEntry(f"a{i}", F32, s) for i, s in enumerate(shapes))
    outputs = tuple(SignatureEntry("y", F32, s) for s in results)
    return Signature(inputs, outputs, ranges)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: x * 2, ""),
        (lambda x: np.tanh(x).astype(np.float64)[:, :1], ""),
        # Other code for other sizes: the same but for rounding.
        (lambda x: x * F32.type(1 + 1e-6 * len(x)), ""),
        (lambda x: x * F32.type(1 + 1e-3 * len(x)), "18 rows together differ from 5 alone"),
        (lambda x: x - x.mean(0), "18 rows together differ from 5 alone"),
        (lambda x: x[::-1], "18 rows together differ from 5 alone"),
        (lambda x: np.cumsum(x, 0), "18 rows together differ from 13 alone"),
        # The largest of all rows makes no difference to numbers, only to NaN.
        (lambda x: (x - x.max()) + x.max(), "5 rows come to other results beside other rows"),
        (lambda x: x.sum(0), "18 rows come to results of [2]"),
        (lambda x: (x, x.sum()), "18 rows come to results of [18, 2], []"),
        (lambda x: np.full((18, 2), 1, F32), "18 rows together differ from 5 alone"),
    ],
)
def test_rows_are_probed(call, why):
    most, found = most_rows(call, rows_of(("n", 2), n=(1, 64)))
    assert (most, bool(found)) == (0 if why else 64, bool(why)) and why in found


def test_bits_may_be_asked_for():
    def call(x):
        return x * F32.type(1 + 1e-6 * len(x))

    most, why = most_rows(call, rows_of(("n", 2), n=(1, 64)), exact=True)
    assert most == 0 and "not the same bits" in why


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        (rows_of(("n", 2)), "the dimension `n` has no declared range"),
        (rows_of(("n", "n"), n=(1, 8)), "the dimension `n` is not the first one alone"),
        (rows_of(("n", "2*n"), n=(1, 8)), "the dimension `n` is not the first one alone"),
        (rows_of(("n", "k"), n=(1, 8)), "the dimension `k` has no declared range"),
        (rows_of(("n", 2), ("m",), n=(1, 8), m=(1, 8)), "do not all begin with one"),
        (rows_of(("n", 2), (), n=(1, 8)), "do not all begin with one"),
        (rows_of((4, 2)), "do not all begin with one"),
        (rows_of(("n", 2), n=(5, 8)), "have more than 8, the most"),
    ],
)
def test_programs_that_take_no_batches(signature, why):
    most, found = most_rows(lambda *x: x[0], signature)
    assert most == 0 and why in found


def test_rows_of_a_program_that_fails():
    def fail(x):
        raise PycError(ReasonCode.RUNTIME_FAILED, "no such index")

    most, why = most_rows(fail, rows_of(("n", 2), n=(1, 8)))
    assert most == 0 and "a call on random rows fails: no such index" in why


def test_rows_beside_other_dynamic_sizes():
    assert most_rows(lambda x: x, rows_of(("n", "k"), n=(0, 2), k=(3, 9))) == (2, "")


class Calls:
    """A program whose first call waits until it may go on."""

    def __init__(self) -> None:
        self.free, self.rows = threading.Event(), []
        self.rows_called: Callable[[], object] = lambda: None

    def __call__(self, x, k):
        if not self.rows:
            self.rows.append(len(x))
            self.free.wait(10)
        else:
            self.rows.append(len(x))
            self.rows_called()
        if (k < 0).any():
            raise PycError(ReasonCode.DIMENSION_MISMATCH, "a negative k")
        return x + k[:, None]


def submitted(batcher: Batcher, *rows: int, k: int = 1, deadline: float | None = None):
    made = [Waiting([np.full((r, 2), r, F32), np.full(r, k, I64)], r, deadline, None) for r in rows]
    for waiting in made:
        batcher.submit(waiting)
    return made


def served(call, limit: int = 16, most: int = 8):
    told = {}
    batcher = Batcher(call, lambda found: told.update(found), 1, limit, most)
    return batcher, told


def behind(call: Calls, batcher: Batcher) -> None:
    """Let the worker be at a call, behind which requests wait."""
    submitted(batcher, 1)
    while not call.rows:
        pass


def test_what_waits_is_called_together_and_answered_apart():
    call = Calls()
    batcher, told = served(call)
    behind(call, batcher)
    requests = submitted(batcher, 3, 4, 2, 1)
    call.free.set()
    batcher.close()
    assert call.rows == [1, 8, 2] and (batcher.batches, batcher.batched) == (3, 5)
    for waiting in requests:
        (y,) = told[waiting]
        assert (y == waiting.rows + 1).all() and y.shape == (waiting.rows, 2)


def test_one_requests_mistake_is_not_the_others():
    call = Calls()
    batcher, told = served(call)
    behind(call, batcher)
    (good,), (bad,) = submitted(batcher, 2), submitted(batcher, 2, k=-1)
    call.free.set()
    batcher.close()
    assert (told[good][0] == 3).all() and told[bad].code is ReasonCode.DIMENSION_MISMATCH


def test_a_full_queue_refuses_and_late_or_cancelled_requests_are_not_computed():
    call = Calls()
    batcher, told = served(call, limit=3, most=0)
    behind(call, batcher)
    (late,), (gone, last) = submitted(batcher, 1, deadline=0.0), submitted(batcher, 1, 1)
    gone.cancelled = True
    refused(ReasonCode.SERVER_BUSY, submitted, batcher, 1, match="fewer than 3 requests")
    call.free.set()
    batcher.close()
    assert told[late].code is ReasonCode.DEADLINE_PASSED and gone not in told
    assert (told[last][0] == 2).all() and len(call.rows) == 2
    with pytest.raises(PycError, match="one that ends"):
        submitted(batcher, 1)


def test_fewer_rows_together_wait_for_the_batch_that_is_computed():
    """A build that is not called by rows is put in place when no batch is on its way."""
    call = Calls()
    batcher, told = served(call)
    behind(call, batcher)
    requests = submitted(batcher, 1, 1)
    free, began = threading.Event(), threading.Event()
    call.rows_called = lambda: (began.set(), free.wait(10))
    call.free.set()
    began.wait(10)
    lowered = threading.Thread(target=batcher.lower, args=(0,))
    lowered.start()
    lowered.join(0.05)
    assert lowered.is_alive() and batcher.most == 0
    free.set()
    lowered.join(10)
    assert not lowered.is_alive() and call.rows == [1, 2]
    batcher.lower(4)
    assert batcher.most == 0
    batcher.close()
    assert all((told[w][0] == 2).all() for w in requests)
