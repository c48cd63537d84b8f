"""A Prometheus server reads the metrics of `pyc-serve`, and Chromium shows its live page.

Both are Debian's packages (`make live`); where they are not installed, the tests skip.
"""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import TensorSpec
from pyc_mlir.util.children import Child

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install '.[serve]'")

PROMETHEUS, CHROMIUM = shutil.which("prometheus"), shutil.which("chromium")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
CALLS = 7


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a server that has answered `CALLS` calls and refused one."""
    from pyc_mlir.tools.bench.suites.serve import served

    folder = tmp_path_factory.mktemp("model")
    spec = TensorSpec("f32", "n", 3)
    pyc_mlir.compile(lambda x: x * 2, [spec], dims={"n": (1, 16)}).save(folder / "m.vmfb")
    with served(str(folder / "m.vmfb")) as (_, port):
        tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.ravel().tolist()}
        url = f"http://127.0.0.1:{port}"
        for _ in range(CALLS):
            asked = httpx.post(f"{url}/v2/models/m/infer", json={"inputs": [tensor]})
            assert asked.status_code == 200
        assert httpx.post(f"{url}/v2/models/m/infer", json={}).status_code == 400
        yield url


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus server is installed (make live)")
def test_prometheus_reads_the_metrics(address, tmp_path: Path):
    place = address.removeprefix("http://")
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: pyc, static_configs: [{{targets: ['{place}']}}]}}\n"
    )
    port = free_port()
    command = [
        str(PROMETHEUS),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    server = Child(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def value(query: str) -> float | None:
            reply = httpx.get(f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}")
            found = reply.json()["data"]["result"]
            return float(found[0]["value"][1]) if found else None

        until(lambda: value('pyc_calls_total{model="m"}') == CALLS)
        assert value('pyc_call_refusals_total{model="m",code="BAD_ARGUMENT"}') == 1
        assert value('pyc_call_seconds_count{model="m"}') == CALLS
        assert value('histogram_quantile(0.99, pyc_call_seconds_bucket{model="m"})') is not None
        assert value("up") == 1 and value('pyc_health{model="m"}') == 0
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.wait(30)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (make live)")
def test_chromium_shows_the_live_page(address, tmp_path: Path):
    """The page as it is after its script has asked twice, and a picture that is not one colour."""
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=5000",
        "--window-size=1100,700",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    page = browse(*flags, "--dump-dom", address)
    assert '<h2>m, build 1: <span class="ok">ok</span></h2>' in page
    for fact in ("calls a second", "requests a call", "memory at most", "1 BAD_ARGUMENT"):
        assert fact in page
    assert '<p id="away"></p>' in page and "calls: answered; calls " in page
    picture = tmp_path / "page.png"
    browse(*flags, f"--screenshot={picture}", address)
    assert picture.read_bytes()[:4] == b"\x89PNG" and picture.stat().st_size > 10_000


def browse(*arguments: str) -> str:
    done = subprocess.run([str(CHROMIUM), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def until(holds, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except (httpx.TransportError, json.JSONDecodeError, KeyError):
            pass
        assert time.monotonic() < end
        time.sleep(0.2)


def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
