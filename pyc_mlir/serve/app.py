"""The ASGI application: addresses, limits and errors.

    GET  /v2, /v2/health/live, /v2/health/ready
    GET  /v2/models/NAME[/versions/V], .../ready, .../stats
    POST /v2/models/NAME[/versions/V]/infer
    POST /v2/repository/index, /v2/repository/models/NAME/load
    GET  /metrics, /status, /

Errors are ``{"error": "...", "code": "..."}`` with a status by their reason code.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pyc_mlir.dialects.errors import PycError, ReasonCode, internal_error
from pyc_mlir.serve.limits import Limits
from pyc_mlir.serve.models import Model, model_of
from pyc_mlir.serve.page import PAGE, POLICY
from pyc_mlir.serve.protocol import (
    HEADER_LENGTH,
    metadata,
    read_object,
    read_request,
    unknown_address,
    write_response,
)
from pyc_mlir.service.builds import FAULTS
from pyc_mlir.service.telemetry import collector
from pyc_mlir.util.versions import installed_version

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
# Other faults of the program or the machine: 500; the rest are the caller's mistakes: 400.
_STATUS = {
    ReasonCode.SERVER_BUSY: 429,
    ReasonCode.DEADLINE_PASSED: 504,
    ReasonCode.REQUEST_TOO_LARGE: 413,
    ReasonCode.UNKNOWN_MODEL: 404,
    ReasonCode.UNKNOWN_ADDRESS: 404,
    ReasonCode.UNAUTHORIZED: 401,
    ReasonCode.SERVICE_REFUSING: 503,
    ReasonCode.OUT_OF_MEMORY: 503,
    ReasonCode.DEVICE_UNAVAILABLE: 503,
    ReasonCode.FILE_ACCESS: 500,
    ReasonCode.BAD_ARTIFACT: 500,
    ReasonCode.MISSING_DEPENDENCY: 501,
}
# Seconds after which a request that is not answered looks whether its client is still there.
_WATCH_AFTER = 0.05
_OPEN = ("/v2/health/live", "/v2/health/ready")


def application(models: Mapping[str, Model], limits: Limits) -> Any:
    """Return the application, which starts the models' workers and ends them."""
    server = _Server(models, limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        for model in models.values():
            model.start(loop)
        server.ready = True
        yield
        server.ready = False
        for model in models.values():
            await asyncio.to_thread(model.close)

    handlers = {HTTPException: server.no_address, PycError: _response, Exception: _response}
    app = Starlette(routes=server.routes(), lifespan=lifespan, exception_handlers=handlers)
    return server.guarded(app)


class _Server:
    """The handlers."""

    def __init__(self, models: Mapping[str, Model], limits: Limits) -> None:
        self.models, self.limits = models, limits
        self.ready = False
        # Requests that were refused before any model was asked, by reason code.
        self.refusals: Counter[str] = Counter()
        self._registry = self._made_registry()

    def routes(self) -> list[Route]:
        """List the addresses."""
        at = "/v2/models/{name}"
        found = [
            Route("/", self._page),
            Route("/status", self._status),
            Route("/metrics", self._metrics),
            Route("/v2", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._is_ready),
            Route("/v2/models/stats", self._all_stats),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/repository/models/{name}/load", self._load, methods=["POST"]),
        ]
        for prefix in (at, at + "/versions/{version}"):
            found += [
                Route(prefix, self._metadata),
                Route(prefix + "/ready", self._model_ready),
                Route(prefix + "/stats", self._stats),
                Route(prefix + "/infer", _Infer(self)),
            ]
        return found

    def guarded(self, app: Any) -> Any:
        """Return the application behind the limits of access."""

        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                try:
                    if scope["path"] not in _OPEN:
                        self.limits.require_access(dict(scope["headers"]))
                except PycError as error:
                    self.refusals[error.code.name] += 1
                    await _refused(error)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return guard

    async def no_address(self, request: Request, error: Any) -> Response:
        """Answer a request that no address takes."""
        assert isinstance(error, HTTPException)
        self.refusals[ReasonCode.UNKNOWN_ADDRESS.name] += 1
        headers, paths = error.headers or {}, (r.path for r in self.routes())
        expected = headers.get("Allow") or ", ".join(p for p in paths if "version}" not in p)
        refused = _refused(unknown_address(request.method, request.url.path, expected))
        refused.status_code = error.status_code
        refused.headers.update(headers)
        return refused

    def model(self, params: Mapping[str, str]) -> Model:
        """Return the model that an address names. Raises PycError (UNKNOWN_MODEL)."""
        try:
            return model_of(self.models, params["name"], params.get("version"))
        except PycError as error:
            self.refusals[error.code.name] += 1
            raise

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _is_ready(self, request: Request) -> Response:
        ready = self.ready and all(m.is_ready for m in self.models.values())
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _model_ready(self, request: Request) -> Response:
        model = self.model(request.path_params)
        ready = self.ready and model.is_ready
        health = model.service.health()
        body: dict[str, Any] = {"name": model.name, "ready": ready, "health": health.state}
        return JSONResponse(
            body | {"reasons": list(map(str, health.reasons))}, 200 if ready else 503
        )

    async def _server(self, request: Request) -> Response:
        extensions = ["binary_tensor_data", "model_repository", "statistics"]
        version = installed_version("pyc-mlir")
        return JSONResponse({"name": "pyc-serve", "version": version, "extensions": extensions})

    async def _metadata(self, request: Request) -> Response:
        model = self.model(request.path_params)
        return JSONResponse(metadata(model.name, model.version, model.signature))

    async def _stats(self, request: Request) -> Response:
        return JSONResponse({"model_stats": [_triton(self.model(request.path_params))]})

    async def _all_stats(self, request: Request) -> Response:
        return JSONResponse({"model_stats": [_triton(m) for m in self.models.values()]})

    async def _index(self, request: Request) -> Response:
        only_ready = (await self._asked(request, "ready")).get("ready")
        found = [
            {
                "name": m.name,
                "version": m.version,
                "state": "READY" if m.is_ready else "UNAVAILABLE",
            }
            for m in self.models.values()
            if m.is_ready or not only_ready
        ]
        return JSONResponse(found)

    async def _load(self, request: Request) -> Response:
        """Put the file of a model in place as a new build."""
        model = self.model(request.path_params)
        await self._asked(request)
        version = await asyncio.to_thread(model.swap)
        return JSONResponse({"name": model.name, "version": version})

    async def _asked(self, request: Request, *known: str) -> Mapping[str, Any]:
        """Read the object in a request's body, if it has one, whose fields the server all knows."""
        try:
            body = await _body(dict(request.scope["headers"]), request.receive, self.limits)
            return read_object(body or b"{}", known)
        except PycError as error:
            self.refusals[error.code.name] += 1
            raise

    async def _status(self, request: Request) -> Response:
        models = {n: m.numbers() for n, m in self.models.items()}
        return JSONResponse({"models": models, "refusals": self.refusals})

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY})

    async def _metrics(self, request: Request) -> Response:
        if self._registry is None:
            raise PycError(
                ReasonCode.MISSING_DEPENDENCY,
                where="/metrics",
                expected="the package prometheus-client",
                got="none installed",
                remedy="install PyC with its extra `metrics`",
            )
        from prometheus_client.exposition import (  # pyright: ignore[reportMissingImports]
            CONTENT_TYPE_LATEST,
            generate_latest,
        )

        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    def _made_registry(self) -> Any:
        try:
            from prometheus_client import (  # pyright: ignore[reportMissingImports]
                CollectorRegistry,
            )
        except ModuleNotFoundError:
            return None
        registry = CollectorRegistry()
        sources = lambda: [m.snapshot() for m in self.models.values()]  # noqa: E731
        registry.register(collector(sources, self.refusals))
        return registry


class _Infer:
    """The address that answers requests: plain ASGI, since each microsecond is every client's."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
        model = self._server.model(scope["path_params"])
        headers = dict(scope["headers"])
        with model.counted():
            body = await _body(headers, receive, self._server.limits)
            if body is None:
                return
            given = headers.get(HEADER_LENGTH.encode())
            length = None if given is None else given.decode("latin-1")
            request = read_request(body, length, model.signature)
        results = await _unless_gone(model.infer(request.inputs, request.timeout_seconds), receive)
        if results is None:
            model.refusals["CANCELLED"] += 1
            return
        with model.counted():
            json_length, parts = write_response(
                model.name, model.version, request, model.signature, results
            )
        await _send(send, json_length, parts)


async def _body(headers: Mapping[bytes, bytes], receive: Receive, limits: Limits) -> bytes | None:
    """Read the body within the limits; None if the client left."""
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.lower() != "identity":
        text = f"expected identity, got {encoding[:80]}; send the body uncompressed"
        raise PycError(ReasonCode.BAD_ARGUMENT, text, where="content-encoding")
    declared = headers.get(b"content-length", b"0")
    limits.require_size(int(declared) if declared.isdigit() else 0)
    try:
        async with asyncio.timeout(limits.read_seconds):
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                limits.require_size(len(message["body"]))
                return message["body"]
            return await _rest(message, receive, limits)
    except TimeoutError:
        raise PycError(
            ReasonCode.DEADLINE_PASSED,
            where="request",
            expected=f"a body within {limits.read_seconds:g} s",
            got="a part of it",
        ) from None


async def _rest(message: Mapping[str, Any], receive: Receive, limits: Limits) -> bytes | None:
    parts, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        size += len(message["body"])
        limits.require_size(size)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


async def _unless_gone(answer: Any, receive: Receive) -> Any:
    """Await an answer; None if the client left before it came.

    The client is looked for only after a while: most answers are there before.
    """
    task = asyncio.ensure_future(answer)
    done, _ = await asyncio.wait((task,), timeout=_WATCH_AFTER)
    if not done:
        gone = asyncio.ensure_future(receive())
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            return None
        gone.cancel()
    return task.result()


async def _send(send: Send, json_length: int | None, parts: Sequence[bytes]) -> None:
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    kind = b"application/json" if json_length is None else b"application/octet-stream"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if json_length is not None:
        headers.append((HEADER_LENGTH.encode(), str(json_length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _triton(model: Model) -> dict[str, Any]:
    """Return the statistics of a model as Triton's extension names them."""
    found = model.snapshot()
    nanoseconds = int(found.seconds_total * 1e9)
    failed = sum(found.failures.values()) + sum(found.refusals.values())
    return {
        "name": model.name,
        "version": model.version,
        "inference_count": model.queue.batched,
        "execution_count": model.queue.batches,
        "inference_stats": {
            "success": {"count": found.calls, "ns": nanoseconds},
            "fail": {"count": failed, "ns": 0},
        },
    }


def _refused(error: PycError) -> Response:
    status = _STATUS.get(error.code, 500 if error.code in FAULTS else 400)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse({"error": error.message, "code": error.code.name}, status, headers)


async def _response(request: Request, error: Exception) -> Response:
    """Answer an error as the protocol writes it."""
    return _refused(error if isinstance(error, PycError) else internal_error(error))
