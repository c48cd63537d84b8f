"""Captured values that change after the first call of a `jit` function: it is compiled again."""

import logging
import sys
import weakref
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from test_jit import oracle

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.captures import MOST_ARRAYS, MOST_BYTES, MOST_ELEMENTS, Captures
from pyc_mlir.frontends.python.jit import jit
from pyc_mlir.frontends.python.recording import Recording, names_of

X = np.arange(4, dtype=np.float32)
WEIGHT = np.ones(4, np.float32)
SCALE = 2.0


def captures_of(function) -> Captures:
    """Return what a run of the function reads."""
    with Recording() as recording:
        function(X)
    return Captures(function, recording)


def reads_globals(x):
    return x * SCALE + WEIGHT


def test_globals(monkeypatch):
    function = jit(reads_globals, compile=oracle)
    np.testing.assert_array_equal(function(X), X * 2 + 1)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    np.testing.assert_array_equal(function(X), X * 3 + 1)
    monkeypatch.setitem(globals(), "WEIGHT", WEIGHT * 5)
    np.testing.assert_array_equal(function(X), X * 3 + 5)
    assert function.cache_info() == (0, 3, 1)
    monkeypatch.setitem(globals(), "SCALE", float("3"))  # another object, the same bits
    np.testing.assert_array_equal(function(X), X * 3 + 5)
    assert function.cache_info() == (1, 3, 1)


def test_variables_of_enclosing_functions_and_small_arrays_in_place():
    bias, layers = np.zeros(4, np.float32), [1.0]
    function = jit(lambda x: x + bias + sum(layers), compile=oracle)
    np.testing.assert_array_equal(function(X), X + 1)
    bias += 1
    np.testing.assert_array_equal(function(X), X + 2)
    layers.append(2.0)
    np.testing.assert_array_equal(function(X), X + 4)
    layers.clear()
    np.testing.assert_array_equal(function(X), X + 1)
    layers.append(7.0)  # to a list that was empty
    np.testing.assert_array_equal(function(X), X + 8)
    bias = np.full(4, 9, np.float32)
    np.testing.assert_array_equal(function(X), X + 16)
    np.testing.assert_array_equal(function(X), X + 16)
    assert function.cache_info() == (1, 6, 1)


class Linear:
    factor = 1

    def __init__(self, weight):
        self.weight = np.full(4, weight, np.float32)
        self.calls = 0

    def __call__(self, x):
        return x * self.weight * self.factor


class Slotted:
    __slots__ = ("bias",)

    def __init__(self, bias):
        self.bias = bias


class Model:
    def __init__(self):
        self.layers = {"first": Linear(1), "second": Linear(2)}
        self.slotted = Slotted(0)
        self.negate = False

    @property
    def sign(self):
        return -1 if self.negate else 1

    def body(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x

    @jit(compile=oracle)
    def forward(self, x):
        return self.body(x) * self.sign + self.slotted.bias


def test_attributes_of_an_instance_and_of_what_it_holds():
    Model.forward.cache_clear()
    model = Model()
    np.testing.assert_array_equal(model.forward(X), X * 2)
    model.layers["second"].weight = np.full(4, 3, np.float32)
    np.testing.assert_array_equal(model.forward(X), X * 3)
    model.negate = True
    np.testing.assert_array_equal(model.forward(X), X * -3)
    model.slotted.bias = 4
    np.testing.assert_array_equal(model.forward(X), X * -3 + 4)
    model.layers["first"] = Linear(2)
    np.testing.assert_array_equal(model.forward(X), X * -6 + 4)
    del model.layers["first"]
    np.testing.assert_array_equal(model.forward(X), X * -3 + 4)
    assert Model.forward.cache_info() == (0, 6, 1)
    model.layers["second"].calls += 1  # which no code of the model reads
    np.testing.assert_array_equal(model.forward(X), X * -3 + 4)
    assert Model.forward.cache_info() == (1, 6, 1)


def test_attributes_of_a_class(monkeypatch):
    layer = Linear(1)
    function = jit(lambda x: layer(x), compile=oracle)
    np.testing.assert_array_equal(function(X), X)
    monkeypatch.setattr(Linear, "factor", 2)
    np.testing.assert_array_equal(function(X), X * 2)
    monkeypatch.setattr(Linear, "factor", 2.0)  # of another type, which traces alike here
    np.testing.assert_array_equal(function(X), X * 2)
    assert function.cache_info() == (1, 2, 1)


def test_what_a_called_function_reads():
    scale = [1.0]

    def inner(x, k):
        return x * k * scale[0]

    function = jit(lambda x: partial(inner, k=2)(x), compile=oracle)
    np.testing.assert_array_equal(function(X), X * 2)
    scale[0] = 5.0
    np.testing.assert_array_equal(function(X), X * 10)


class Counting:
    """Counts its changes, as torch's tensors do."""

    _version = 0


def test_torch_tensors_count_their_changes():
    weight = Counting()
    found = captures_of(lambda x: weight)
    assert found.changed() == ""
    weight._version += 1
    assert found.changed() == "weight"


def test_contents_of_large_arrays_are_not_compared():
    large = np.zeros(MOST_BYTES, np.float32)
    function = jit(lambda x: x + large[:4], compile=oracle)
    function(X)
    large += 1
    np.testing.assert_array_equal(function(X), X)
    function.cache_clear()
    np.testing.assert_array_equal(function(X), X + 1)


def test_the_smallest_arrays_are_compared():
    arrays = [np.zeros(n + 1, np.float32) for n in range(MOST_ARRAYS + 2)]
    found = captures_of(lambda x: x + arrays[0][0])
    arrays[-1][0] = 1
    assert found.changed() == ""
    arrays[0][0] = 1
    assert found.changed() == "arrays[0]"


def test_what_a_trace_itself_changes_is_no_change():
    seen = {"traces": 0}

    def count(x):
        seen["traces"] += 1
        return x

    function = jit(count, compile=oracle)
    for _ in range(3):
        function(X)
    assert seen == {"traces": 1} and function.cache_info().misses == 1


def test_what_is_too_large_to_compare_is_a_warning(caplog):
    many = [float(n) for n in range(MOST_ELEMENTS + 1)]
    function = jit(lambda x: x + many[0], compile=oracle)
    function(X)
    assert "captured `many`, which is too large" in caplog.text
    many[0] = 5.0
    np.testing.assert_array_equal(function(X), X)


def test_frequent_changes_are_a_warning(caplog):
    caplog.set_level(logging.INFO, "pyc_mlir.jit")
    step = 0
    function = jit(lambda x: x + step, compile=oracle)
    for step in range(12):  # noqa: B007  (captured)
        function(X)
    levels = [record.levelname for record in caplog.records]
    assert levels.count("WARNING") == 1 and levels.count("INFO") == 10
    assert "captured `step` has changed" in caplog.text and "as an argument" in caplog.text


class Layer:
    def __init__(self):
        self.weight, self.bias = np.ones((4, 4), np.float32), np.zeros(4, np.float32)
        self.name = "layer"

    def __call__(self, x):
        return x @ self.weight + self.bias if self.name else x


class Deep:
    def __init__(self):
        self.layers = [Layer() for _ in range(12)]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_values_that_equality_tells_apart_are_compared_by_it():
    """A check of twelve layers reads each object once; by identity it compares no value."""
    deep = Deep()
    found = captures_of(deep)
    assert [r.__class__ for r in found._quick._equal[0]].count(attrgetter) == 2 + 12
    assert [h for h in found._quick._same[1] if isinstance(h, Layer)] == []
    assert found.changed() == ""
    deep.layers[7].bias = np.zeros(4, np.float32)
    assert found.changed() == "self.layers[7].bias"
    deep.layers[7] = Layer()
    assert captures_of(deep).changed() == "" and found.changed() == "self.layers[7]"


def test_attributes_that_no_code_names_are_left_out():
    deep = Deep()
    found = captures_of(deep)
    vars(deep.layers[3])["calls"] = 1
    assert not found._quick.is_same() and found.changed() == ""
    vars(deep.layers[3])["calls"] = 2
    assert found._quick.is_same(), "what is compared at each call"
    deep.layers[3].bias = np.ones(4, np.float32)
    assert found.changed() == "self.layers[3].bias"


def test_attributes_under_a_property_and_of_other_names():
    class Covered:
        scale = property(lambda self: vars(self)["scale"] + vars(self)["not.a.name"])

        def __init__(self):
            vars(self).update({"scale": 2.0, "not.a.name": 1.0})

    holder = Covered()
    for name in ("scale", "not.a.name"):
        found = captures_of(lambda x: x * holder.scale)
        assert found.changed() == ""
        vars(holder)[name] = 5.0
        assert found.changed() == f"holder.{name}"


def test_what_tuples_hold_is_compared():
    layers = tuple((Layer(), [1.0]) for _ in range(12))

    def model(x):
        for layer, scales in layers:
            x = layer(x) * scales[0]
        return x

    found = captures_of(model)
    assert found.changed() == ""
    layers[3][1][0] = 2.0
    assert found.changed() == "layers[3][1][0]"


def test_equal_values_of_other_types_and_arrays_of_one_element_are_changes():
    """What `==` takes for equal, and a trace does not."""
    for before, after in (
        (1, True), (1, 1.0), (0.0, -0.0), (np.float32(1), np.float64(1)), ([1], [1]),
        (np.ones(1), np.ones(1)), (np.ones(3), np.ones(3)), (np.ones(2), "no array"),
    ):  # fmt: skip
        holder = {"value": before, "other": "x"}
        found = captures_of(lambda x, holder=holder: holder["value"])
        assert found.changed() == ""
        holder["value"] = after
        assert found.changed(), (before, after)


def test_a_profiler_or_a_debugger_goes_on():
    scale, seen = [2.0], []

    def helper(x):
        return x * scale[0]

    def notes(frame, event, argument):
        seen.append(event)

    both: Any = ((sys.setprofile, sys.getprofile), (sys.settrace, sys.gettrace))
    for begin, current in both:
        before = current()
        begin(notes)
        try:
            found = captures_of(lambda x: helper(x))
            kept = current()
        finally:
            begin(before)
        assert kept is notes and seen
        scale[0] += 1
        assert found.changed() == "scale[0]"


def test_what_a_trace_makes_for_itself_is_not_kept():
    made = []

    def model(x):
        temporary = Layer()
        vars(temporary)["own"] = [temporary.weight]
        made.append(weakref.ref(temporary))
        return temporary(x)

    captures_of(model)
    assert made[0]() is None


def test_computed_names_of_attributes():
    def computed(function):
        return names_of(function.__code__).computed

    assert not computed(lambda x: getattr(x, "a"))  # noqa: B009
    assert not computed(lambda x, y: getattr(x.b[0](y), "a", y + 1) if hasattr(x, "a") else 0)
    assert computed(lambda x, y: getattr(x, y))
    assert computed(lambda x, y: getattr(x, f"a{y}", None))
    assert computed(lambda x: map(getattr, x, "ab"))
    assert computed(lambda x: vars(x))
    assert computed(lambda x: x.__dict__)


def test_an_audit_traces_again(monkeypatch):
    large = np.ones((MOST_BYTES, 4), np.float32)
    function = jit(lambda x: np.abs(x) + large[0], compile=oracle, audit=3)
    for _ in range(4):
        function(X)
    assert function.cache_info() == (3, 1, 1)
    large[0] = 2
    function(X)
    function(X)
    with pytest.raises(
        PycError, match=r"`%1 = \"pyc.constant.*test_captures.py.*cache_clear"
    ) as caught:
        function(X)
    assert caught.value.code is ReasonCode.STALE_CAPTURES
    function.cache_clear()
    np.testing.assert_array_equal(function(X), X + 2)
    with pytest.raises(PycError, match="audit: expected"):
        jit(lambda x: x, compile=oracle, audit=-1)
