"""`pyc-serve`: serve compiled programs over HTTP, by the open inference protocol v2."""

import argparse
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.serve.limits import LOOPBACK, Limits
from pyc_mlir.tools.cli.common import Parser, positive, run_tool

TOKEN = "PYC_SERVE_TOKEN"
_SIZE = re.compile(r"(\d{1,12})(?:([KMG])iB)?")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = Parser(
        "pyc-serve", "Serve compiled programs over HTTP, by the open inference protocol v2."
    )
    made.add_argument(
        "models", nargs="+", metavar="[NAME=]MODEL.vmfb", help="a program; its name in addresses"
    )
    made.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at; default: %(default)s"
    )
    made.add_argument(
        "--port", type=int, default=8000, help="the port, 0 for any; default: %(default)s"
    )
    made.add_argument(
        "--workers", type=positive, metavar="N", help="calls of a model that run at once"
    )
    made.add_argument(
        "--threads", type=positive, metavar="N", help="threads of a call; default: one per core"
    )
    made.add_argument(
        "--queue", type=positive, metavar="N", help="requests of a model that may wait"
    )
    made.add_argument(
        "--no-batching", action="store_true", help="call the program for each request alone"
    )
    made.add_argument(
        "--memory-budget", metavar="BYTES", help="the most of all models together, as 512MiB"
    )
    _add_limits(made)
    made.add_argument("--telemetry", type=Path, metavar="FILE", help="append numbers as JSON lines")
    made.add_argument(
        "--spans",
        action="store_true",
        help="write spans of OpenTelemetry for calls; start it by `opentelemetry-instrument`",
    )
    return made


def _add_limits(made: argparse.ArgumentParser) -> None:
    """Add what bounds requests, clients and calls."""
    made.add_argument(
        "--max-request-bytes",
        default="64MiB",
        metavar="BYTES",
        help="the largest body of a request; default: %(default)s",
    )
    made.add_argument(
        "--max-connections",
        type=positive,
        default=1024,
        metavar="N",
        help="connections at once; default: %(default)s",
    )
    made.add_argument(
        "--drain-seconds",
        type=positive,
        default=30,
        metavar="S",
        help="the time that requests which have begun get after SIGTERM; default: %(default)s",
    )
    made.add_argument(
        "--p99",
        type=float,
        metavar="SECONDS",
        help="target of calls: a build that misses it after a swap is taken back",
    )
    made.add_argument(
        "--hang-seconds", type=float, metavar="S", help="report calls that take longer"
    )
    made.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"holds the token that clients must send (or the variable {TOKEN}); required "
        "to listen anywhere but on this machine",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it. Returns 1 where it cannot begin."""
    return run_tool("pyc-serve", lambda: _serve(make_parser().parse_args(argv)))


def _serve(args: argparse.Namespace) -> int:
    uvicorn = _uvicorn()
    from pyc_mlir.serve.app import application
    from pyc_mlir.serve.models import ModelSettings, load_models
    from pyc_mlir.service.targets import Targets
    from pyc_mlir.service.telemetry import JsonLines
    from pyc_mlir.util.logs import trace_spans

    if args.spans:
        trace_spans()
    token = _token(args)
    limits = Limits(_bytes("--max-request-bytes", args.max_request_bytes), token=token)
    budget = args.memory_budget and _bytes("--memory-budget", args.memory_budget)
    targets = None if args.p99 is None else Targets(p99_seconds=args.p99)
    settings = [
        ModelSettings(
            *_named(text),
            workers=args.workers,
            threads=args.threads,
            queue=args.queue,
            batch=not args.no_batching,
            targets=targets,
            hang_seconds=args.hang_seconds,
        )
        for text in args.models
    ]
    listener = _listener(args.host, args.port)
    models = load_models(settings, budget or None)
    config = uvicorn.Config(
        application(models, limits),
        log_level="warning",
        access_log=False,
        limit_concurrency=args.max_connections,
        timeout_graceful_shutdown=args.drain_seconds,
        server_header=False,
        h11_max_incomplete_event_size=1 << 16,
    )
    telemetry = None
    if args.telemetry is not None:
        sources = lambda: [m.snapshot() for m in models.values()]  # noqa: E731
        telemetry = JsonLines(sources, args.telemetry)
    host, port = listener.getsockname()[:2]
    names = ", ".join(models)
    print(f"pyc-serve: {names} at http://{host}:{port}/v2, live page at /", flush=True)
    for model in models.values():
        if model.alone:
            print(f"pyc-serve: {model.name}: requests one by one: {model.alone}", flush=True)
    # The server ends its calls first, then raises the signal again.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        if telemetry is not None:
            telemetry.close()
    return 0


def _bytes(flag: str, text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, where=flag, expected="bytes, as in 64MiB", got=repr(text)
        )
    return int(found[1]) << (10 * ("", "K", "M", "G").index(found[2] or ""))


def _uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ModuleNotFoundError as error:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            where="pyc-serve",
            expected="the packages of the extra `serve`",
            got=f"no package {error.name}",
            remedy=install("serve"),
        ) from None
    return uvicorn


def _token(args: argparse.Namespace) -> str:
    token = os.environ.get(TOKEN, "")
    if args.token_file is not None:
        try:
            token = args.token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PycError(
                ReasonCode.FILE_ACCESS,
                where="--token-file",
                expected="a file with a token",
                got=str(error),
            ) from None
        if not token:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                where="--token-file",
                expected="a file with a token",
                got="an empty one",
            )
    if not token and args.host not in LOOPBACK:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="--host",
            expected="a token for an address that others reach",
            got=f"{args.host} without one",
            remedy=f"give --token-file or the variable {TOKEN}, or listen at 127.0.0.1",
        )
    return token


def _named(text: str) -> tuple[str, Path]:
    name, is_named, path = text.partition("=")
    if is_named and name and "/" not in name:
        return name, Path(path)
    return Path(text).stem, Path(text)


def _listener(host: str, port: int) -> Any:
    """Bind first: a port in use ends the server before it loads models."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="--port",
            expected="an address to listen at",
            got=f"{host}:{port}: {getattr(error, 'strerror', None) or error}",
            remedy="choose another port, or 0 for any that is free",
        ) from None
    return listener


if __name__ == "__main__":
    sys.exit(main())
