"""Spans of OpenTelemetry for the steps of a compile and for calls of a service; none by default."""

import sys

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import PycError, Service
from pyc_mlir.util import logs

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

X = np.ones((2, 3), np.float32)


@pytest.fixture
def spans():
    """The spans that were written, while they are on."""
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    pyc_mlir.trace_spans(provider)
    yield exporter
    pyc_mlir.trace_spans(on=False)


def test_a_compile_writes_a_span_for_each_step(spans):
    pyc_mlir.compile(lambda x: x + 1, [X], cache=False)
    names = [s.name for s in spans.get_finished_spans()]
    assert "PyC lowers to linalg" in names and "IREE compiles for cpu" in names


def test_calls_have_their_model_build_and_code(spans):
    program = pyc_mlir.compile(lambda x: x + 1, [X])
    spans.clear()
    with Service(program, name="m") as service:
        service(X)
        with pytest.raises(PycError):
            service(X[0])
        service.swap(program)
        service(X)
    right, refused, after = spans.get_finished_spans()
    assert right.name == "pyc.call" and right.status.is_ok
    assert dict(right.attributes) == {"pyc.model": "m", "pyc.build": 1}
    assert refused.attributes["pyc.code"] == "ARGUMENT_SHAPE" and not refused.status.is_ok
    assert after.attributes["pyc.build"] == 2
    assert after.end_time > after.start_time


def test_none_are_written_before_they_are_asked_for():
    assert logs.tracer is None
    with logs.span("step"), Service(pyc_mlir.compile(lambda x: x + 1, [X])) as service:
        service(X)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(PycError, match="opentelemetry-api, got none") as error:
        pyc_mlir.trace_spans()
    assert error.value.code.name == "MISSING_DEPENDENCY" and logs.tracer is None
