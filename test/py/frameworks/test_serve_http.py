"""`pyc-serve` in a process of its own, with the clients of others."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import PycError, ReasonCode, TensorSpec
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.serve.limits import Limits
from pyc_mlir.serve.models import Endpoint

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")
from pyc_mlir.serve.app import _refused, application  # noqa: E402  (needs the extra `serve`)

ENTRY = SignatureEntry("x", np.dtype(np.float32), ("n", 3))
SIGNATURE = Signature((ENTRY,), (ENTRY,), {"n": (1, 8)})
X = np.arange(6, dtype=np.float32).reshape(2, 3)
SERVE = [sys.executable, "-m", "pyc_mlir.tools.pyc_serve"]


class Server:
    """A server that has said where it listens."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [*SERVE, "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://([\d.]+:\d+)", line)
        assert found, (line, self.process.stderr.read())
        self.address = found[1]
        self.url = f"http://{found[1]}"
        end = time.monotonic() + 30
        while True:
            try:
                if httpx.get(self.url + "/v2/health/ready").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < end
            time.sleep(0.02)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """m.vmfb: x * 2 for 1 to 16 rows of three. slow.vmfb: products that take a while."""
    folder = tmp_path_factory.mktemp("models")
    double = pyc_mlir.compile(lambda x: x * 2, [TensorSpec("f32", "n", 3)], dims={"n": (1, 16)})
    double.save(folder / "m.vmfb")

    def slow(x):
        for _ in range(8):
            x = x @ x
        return x

    pyc_mlir.compile(slow, [TensorSpec("f32", 384, 384)]).save(folder / "slow.vmfb")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with Server(str(folder / "m.vmfb"), "--max-request-bytes", "1MiB", "--workers", "1") as running:
        yield running


def infer(server: Server, x=X, model: str = "m", **more):
    name = server_input(server, model)
    tensor = {"name": name, "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return httpx.post(
        f"{server.url}/v2/models/{model}/infer", json={"inputs": [tensor], **more}, timeout=60
    )


def server_input(server: Server, model: str) -> str:
    return httpx.get(f"{server.url}/v2/models/{model}").json()["inputs"][0]["name"]


def test_the_addresses_of_the_protocol(server):
    get = lambda path: httpx.get(server.url + path)  # noqa: E731
    assert get("/v2").json()["name"] == "pyc-serve"
    assert get("/v2/health/live").json() == {"live": True}
    metadata = get("/v2/models/m").json()
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert get("/v2/models/m/versions/1/ready").json()["ready"] is True
    assert httpx.post(server.url + "/v2/repository/index").json()[0]["state"] == "READY"
    reply = infer(server, id="a")
    assert reply.status_code == 200 and reply.json()["id"] == "a"
    assert reply.json()["outputs"][0]["data"] == (X * 2).ravel().tolist()
    assert get("/v2/models/m/stats").json()["model_stats"][0]["inference_count"] >= 1
    assert "pyc_call_seconds_bucket" in get("/metrics").text
    status = get("/status").json()["models"]["m"]
    assert (status["health"], status["alone"], status["largest_batch"]) == ("ok", "", 16)
    page = get("/")
    assert "script-src 'sha256-" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"x": X[:, :2]}, 400, "ARGUMENT_SHAPE"),
        ({"x": np.ones((17, 3), np.float32)}, 400, "DIMENSION_OUT_OF_RANGE"),
        ({"x": np.ones((16, 60000), np.float32)}, 413, "REQUEST_TOO_LARGE"),
        ({"parameters": {"timeout": "soon"}}, 400, "BAD_ARGUMENT"),
    ],
)
def test_bad_requests_get_codes(server, change, status, code):
    reply = infer(server, **change)
    assert (reply.status_code, reply.json()["code"]) == (status, code), reply.text


def test_refusals_of_the_server_are_counted(server):
    def counted() -> dict[str, int]:
        found = httpx.get(server.url + "/status").json()
        text = httpx.get(server.url + "/metrics").text
        for code, number in found["models"]["m"]["refusals"].items():
            assert f'pyc_call_refusals_total{{code="{code}",model="m"}} {number}.0' in text
        for code, number in found["refusals"].items():
            assert f'pyc_server_refusals_total{{code="{code}"}} {number}.0' in text
        return found["models"]["m"]["refusals"] | found["refusals"]

    before = counted()
    infer(server, x=X[:, :2])
    infer(server, x=np.ones((16, 60000), np.float32))
    httpx.get(server.url + "/v2/models/none")
    for code in ("ARGUMENT_SHAPE", "REQUEST_TOO_LARGE", "UNKNOWN_MODEL"):
        assert counted().get(code, 0) == before.get(code, 0) + 1


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("GET", "/v2/nowhere", {}, 404, "UNKNOWN_ADDRESS"),
        ("POST", "/v2/repository/models/m/unload", {}, 404, "UNKNOWN_ADDRESS"),
        ("POST", "/v2", {}, 405, "UNKNOWN_ADDRESS"),
        ("GET", "/v2/models/m/infer", {}, 405, "UNKNOWN_ADDRESS"),
        ("GET", "/status", {"headers": {"Host": "attacker.example"}}, 401, "UNAUTHORIZED"),
        ("POST", "/v2/models/m/infer", {"headers": {"Origin": "null"}}, 401, "UNAUTHORIZED"),
        (
            "POST",
            "/v2/models/m/infer",
            {"headers": {"Content-Encoding": "gzip"}, "content": b"{}"},
            400,
            "BAD_ARGUMENT",
        ),
        (
            "POST",
            "/v2/models/m/infer",
            {"headers": {"Inference-Header-Content-Length": "9" * 5000}, "content": b"{}"},
            400,
            "BAD_ARGUMENT",
        ),
        (
            "POST",
            "/v2/repository/models/m/load",
            {"json": {"parameters": {"config": "{}"}}},
            400,
            "BAD_ARGUMENT",
        ),
        ("POST", "/v2/repository/index", {"json": ["ready"]}, 400, "BAD_ARGUMENT"),
    ],
)
def test_mistakes_are_answered_in_json(server, method, path, sent, status, code):
    def counted() -> int:
        found = httpx.get(server.url + "/status").json()
        return found["refusals"].get(code, 0) + found["models"]["m"]["refusals"].get(code, 0)

    before = counted()
    reply = httpx.request(method, server.url + path, **sent)
    assert (reply.status_code, reply.json()["code"]) == (status, code), reply.text
    assert counted() == before + 1
    assert status != 405 or reply.headers["allow"]


def test_the_index_lists_those_that_are_ready(server):
    reply = httpx.post(server.url + "/v2/repository/index", json={"ready": True})
    assert [m["name"] for m in reply.json()] == ["m"]


def test_a_fault_of_the_program_has_status_500():
    """The rest are the caller's mistakes."""
    assert _refused(PycError(ReasonCode.ARENA_TOO_SMALL, "none")).status_code == 500
    assert _refused(PycError(ReasonCode.ARGUMENT_SHAPE, "none")).status_code == 400


def test_a_body_that_never_comes_is_told():
    """No part of it comes, or not all."""

    async def asked(*messages) -> tuple[int, dict]:
        sent, left = [], list(messages)

        async def receive():
            return left.pop(0) if left else await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v2/models/m/infer",
            "headers": [],
            "query_string": b"",
        }
        model = Endpoint("m", lambda x: x, SIGNATURE, 1)
        models: Any = {"m": model}
        await application(models, Limits(read_seconds=0.05))(scope, receive, send)
        assert model.refusals == {"DEADLINE_PASSED": 1}
        return sent[0]["status"], json.loads(sent[1]["body"])

    part = {"type": "http.request", "body": b"{", "more_body": True}
    for messages in ((), (part,)):
        status, body = asyncio.run(asked(*messages))
        assert (status, body["code"]) == (504, "DEADLINE_PASSED")


def test_a_program_that_mixes_rows_is_called_alone(tmp_path):
    """And is told so; requests together would come to other answers."""

    def centred(x):
        return x - np.mean(x, axis=0)

    spec = TensorSpec("f32", "n", 3)
    pyc_mlir.compile(lambda x: x * 2, [spec], dims={"n": (1, 16)}).save(tmp_path / "m.vmfb")
    with Server(str(tmp_path / "m.vmfb"), "--workers", "1") as server:
        status = lambda: httpx.get(server.url + "/status").json()["models"]["m"]  # noqa: E731
        assert status()["largest_batch"] == 16
        pyc_mlir.compile(centred, [spec], dims={"n": (1, 16)}).save(tmp_path / "m.vmfb")
        assert httpx.post(server.url + "/v2/repository/models/m/load").status_code == 200
        assert status()["largest_batch"] == 0 and "18 rows" not in status()["alone"]
        assert "together differ" in status()["alone"]

        def ask(number: int) -> bool:
            reply = infer(server, X * number)
            return np.allclose(reply.json()["outputs"][0]["data"], centred(X * number).ravel())

        with ThreadPoolExecutor(8) as clients:
            assert all(clients.map(ask, range(100)))


def test_unknown_models_and_versions(server):
    for path in ("/v2/models/none", "/v2/models/m/versions/9", "/v2/models/none/ready"):
        reply = httpx.get(server.url + path)
        assert (reply.status_code, reply.json()["code"]) == (404, "UNKNOWN_MODEL")


def test_a_client_that_says_nothing_holds_up_nobody(server):
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as idle:
        idle.sendall(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        assert infer(server).status_code == 200


def test_tritons_client(server):
    client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    with client.InferenceServerClient(server.address) as triton:
        assert triton.is_server_live() and triton.is_model_ready("m")
        assert triton.get_model_metadata("m")["platform"] == "pyc"
        for binary in (True, False):
            given = client.InferInput("x", list(X.shape), "FP32")
            given.set_data_from_numpy(X, binary_data=binary)
            name = triton.get_model_metadata("m")["outputs"][0]["name"]
            wanted = [client.InferRequestedOutput(name, binary_data=binary)]
            result = triton.infer("m", [given], outputs=wanted, request_id="7")
            assert (result.as_numpy(name) == X * 2).all()
            assert result.get_response()["id"] == "7"


def test_many_clients_get_their_own_answers_while_builds_are_swapped(server):
    before = httpx.get(server.url + "/v2/models/m").json()["versions"]

    def ask(number: int) -> bool:
        x = np.full((1 + number % 4, 3), number, np.float32)
        reply = infer(server, x)
        return (
            reply.status_code == 200
            and reply.json()["outputs"][0]["data"] == [2.0 * number] * x.size
        )

    with ThreadPoolExecutor(8) as clients:
        answers = clients.map(ask, range(200))
        for _ in range(5):
            assert httpx.post(server.url + "/v2/repository/models/m/load").status_code == 200
        assert all(answers)
    assert httpx.get(server.url + "/v2/models/m").json()["versions"] != before


def test_a_full_queue_is_told_at_once(folder):
    options = ("--queue", "1", "--workers", "1")
    with Server(str(folder / "slow.vmfb"), *options) as server:
        x = np.eye(384, dtype=np.float32)
        end = time.monotonic() + 60
        replies = []
        with ThreadPoolExecutor(16) as clients:
            while not any(r.status_code == 429 for r in replies) and time.monotonic() < end:
                replies = list(clients.map(lambda _: infer(server, x, "slow"), range(64)))
        assert {r.status_code for r in replies} == {200, 429}
        busy = next(r for r in replies if r.status_code == 429)
        assert busy.json()["code"] == "SERVER_BUSY" and busy.headers["retry-after"] == "1"


def test_a_deadline_is_kept(folder):
    with Server(str(folder / "slow.vmfb"), "--workers", "1") as server:
        x = np.eye(384, dtype=np.float32)
        with ThreadPoolExecutor(4) as clients:
            first = [clients.submit(infer, server, x, "slow") for _ in range(3)]
            time.sleep(0.005)
            late = infer(server, x, "slow", parameters={"timeout": 1})
            assert all(f.result().status_code == 200 for f in first)
        assert late.status_code in (200, 504)
        if late.status_code == 504:
            assert late.json()["code"] == "DEADLINE_PASSED"


def test_the_end_answers_what_has_begun(folder):
    server = Server(str(folder / "slow.vmfb"), "--workers", "1")
    x = np.eye(384, dtype=np.float32)
    replies: list[int] = []
    asked = threading.Thread(target=lambda: replies.append(infer(server, x, "slow").status_code))
    asked.start()
    until = time.monotonic() + 10
    while not httpx.get(server.url + "/status").json()["models"]["slow"]["batches"]:
        assert time.monotonic() < until
    server.__exit__()
    asked.join()
    assert replies == [200] and server.process.returncode in (0, -signal.SIGTERM)


def test_a_token(folder, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    arguments = ("--host", "0.0.0.0", "--token-file", str(tmp_path / "token"))
    with Server(str(folder / "m.vmfb"), *arguments) as server:
        reply = httpx.get(server.url + "/v2/models/m")
        assert (reply.status_code, reply.json()["code"]) == (401, "UNAUTHORIZED")
        right = {"Authorization": "Bearer secret"}
        assert httpx.get(server.url + "/v2/models/m", headers=right).status_code == 200
        assert httpx.get(server.url + "/v2/models/m", headers={"Authorization": "no"}).is_error


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["{m}", "--host", "0.0.0.0"], "BAD_ARGUMENT"),
        (["{m}", "{m}"], "BAD_ARGUMENT"),
        (["missing.vmfb"], "FILE_ACCESS"),
        (["{here}"], "BAD_ARTIFACT"),
        (["{m}", "--memory-budget", "10"], "BUDGET_IMPOSSIBLE"),
        (["{m}", "--memory-budget", "ten"], "BAD_ARGUMENT"),
        (["{m}", "--token-file", "missing"], "FILE_ACCESS"),
        (["{m}", "--port", "{port}"], "BAD_ARGUMENT"),
        (["{m}", "--queue", "0"], "BAD_ARGUMENT"),
        (["{m}", "--workers", "-1"], "BAD_ARGUMENT"),
        (["{m}", "--max-connections", "0"], "BAD_ARGUMENT"),
        (["{m}", "--drain-seconds", "0.5"], "BAD_ARGUMENT"),
        (["{m}", "--hang-seconds", "0"], "BAD_ARGUMENT"),
        (["{m}", "--p99", "nan"], "BAD_ARGUMENT"),
    ],
)
def test_what_cannot_be_served_ends_before_it_listens(folder, server, arguments, code):
    here = {"m": folder / "m.vmfb", "here": __file__, "port": server.address.split(":")[1]}
    command = [*SERVE, "--port", "0", *(a.format(**here) for a in arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    status = 2 if "command line:" in ended.stderr else 1
    assert ended.returncode == status and f"[{code}]" in ended.stderr, ended.stderr


def test_telemetry_is_appended(folder, tmp_path):
    path = tmp_path / "numbers.jsonl"
    with Server(str(folder / "m.vmfb"), "--telemetry", str(path)) as server:
        infer(server)
    assert json.loads(path.read_text().splitlines()[-1])["calls"] == 1
