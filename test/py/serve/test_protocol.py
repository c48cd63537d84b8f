"""The messages of the open inference protocol, and batches of requests; no HTTP, no program."""

import json
import threading

import numpy as np
import pytest

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.serve.batching import Batcher, Waiting, most_rows
from pyc_mlir.serve.protocol import metadata, read_request, write_response

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
        (changed(shape=[2, -2]), None, "`x`: shape: expected sizes"),
        (changed(shape=[2, 3]), None, "`x`: data: expected 6 elements, as its shape says, got 4"),
        (changed(data=[["a", 1], [2, 3]]), None, "`x`: data: expected numbers of FP32"),
        (changed(data=[[1], [2, 3]]), None, "`x`: data: expected numbers of FP32"),
        (changed(datatype="FP16"), None, "`x`: expected FP16 as binary data"),
        (changed(parameters={"binary_data_size": 8}), None, "`x`: expected 16 bytes of FP32"),
        (changed(parameters={"binary_data_size": 16}), None, "16 and 0 bytes left"),
        (body(outputs=[{"name": "z"}]), None, "outputs: expected names out of y, got 'z'"),
        (body(parameters={"timeout": 0}), None, "parameters: timeout: expected 1 to"),
        (body() + b"1234", str(len(body())), "expected binary data of the inputs alone, got 4"),
        (body(), "9999999", "inference-header-content-length: expected a number up to"),
        (body(), "-1", "inference-header-content-length: expected a number up to"),
        (b"\xff", None, "request: expected JSON"),
        (b"[" * 100000, None, "request: expected JSON"),
    ],
)
def test_what_is_no_request_is_named(data, length, message):
    with pytest.raises(PycError) as error:
        read_request(data, length, SIGNATURE)
    assert message in error.value.message and error.value.code is ReasonCode.BAD_ARGUMENT


def test_metadata_names_unknown_sizes():
    x, k = metadata("m", "1", SIGNATURE)["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [-1, 2]} and k["datatype"] == "INT64"


@pytest.mark.parametrize(
    ("shapes", "ranges", "most"),
    [
        ([("n", 2), ("n",)], {"n": (1, 8)}, 8),
        ([("n", 2), ("n",)], {}, 0),
        ([("n", "n"), ("n",)], {"n": (1, 8)}, 0),
        ([("n", 2), ("m",)], {"n": (1, 8), "m": (1, 8)}, 0),
        ([("n", 2), ()], {"n": (1, 8)}, 0),
        ([(4, 2), (4,)], {}, 0),
    ],
)
def test_programs_that_take_batches(shapes, ranges, most):
    inputs = tuple(SignatureEntry(f"a{i}", F32, s) for i, s in enumerate(shapes))
    assert most_rows(Signature(inputs, inputs[:1], ranges)) == most


class Calls:
    """A program whose first call waits until it may go on."""

    def __init__(self) -> None:
        self.free, self.rows = threading.Event(), []

    def __call__(self, x, k):
        if not self.rows:
            self.rows.append(len(x))
            self.free.wait(10)
        else:
            self.rows.append(len(x))
        if (k < 0).any():
            raise PycError(ReasonCode.DIMENSION_MISMATCH, "a negative k")
        return x + k[:, None]


def submitted(batcher: Batcher, *rows: int, k: int = 1, deadline: float | None = None):
    made = [Waiting([np.full((r, 2), r, F32), np.full(r, k, I64)], r, deadline, None) for r in rows]
    for waiting in made:
        batcher.submit(waiting)
    return made


def served(call, limit: int = 16, batch: bool = True):
    told = {}
    batcher = Batcher(call, SIGNATURE, lambda found: told.update(found), 1, limit, batch)
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
    batcher, told = served(call, limit=3, batch=False)
    behind(call, batcher)
    (late,), (gone, last) = submitted(batcher, 1, deadline=0.0), submitted(batcher, 1, 1)
    gone.cancelled = True
    with pytest.raises(PycError, match="fewer than 3 requests") as error:
        submitted(batcher, 1)
    assert error.value.code is ReasonCode.SERVER_BUSY
    call.free.set()
    batcher.close()
    assert told[late].code is ReasonCode.DEADLINE_PASSED and gone not in told
    assert (told[last][0] == 2).all() and len(call.rows) == 2
    assert (batcher.refused, batcher.late) == (1, 1)
    with pytest.raises(PycError, match="one that ends"):
        submitted(batcher, 1)
