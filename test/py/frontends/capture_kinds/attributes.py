"""Attributes of objects, of classes and their bases, and of objects in containers."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import enum
import functools
import operator
import types
import weakref
from dataclasses import asdict, dataclass
from typing import NamedTuple

from capture_kinds.holder import Holder, full


def class_method_variable():
    class A:
        scale = 2.0

        @classmethod
        def run(cls, x):
            return x * cls.scale

    yield lambda x: A.run(x)
    A.scale = 3.0


def nested_class_attribute():
    class A:
        class Config:
            scale = 2.0

    yield lambda x: x * A.Config.scale
    A.Config.scale = 3.0


def by_type_of_self():
    class A:
        scale = 2.0

        def __call__(self, x):
            return x * type(self).scale

    a = A()
    yield lambda x: a(x)
    A.scale = 3.0


def dataclass_field():
    @dataclass
    class A:
        scale: float

    a = A(2.0)
    yield lambda x: x * a.scale
    a.scale = 3.0


def dataclass_with_slots():
    @dataclass(slots=True)
    class A:
        scale: float

    a = A(2.0)
    yield lambda x: x * a.scale
    a.scale = 3.0


def dataclass_as_dict():
    @dataclass
    class A:
        scale: float

    a = A(2.0)
    yield lambda x: x * asdict(a)["scale"]
    a.scale = 3.0


def named_tuple_with_a_list():
    class A(NamedTuple):
        scales: list[float]

    a = A([2.0])
    yield lambda x: x * a.scales[0]
    a.scales[0] = 3.0


def enum_member():
    class Mode(enum.Enum):
        DOUBLE, SAME = 2, 1

    h = Holder(mode=Mode.DOUBLE)
    yield lambda x: x * h.mode.value
    h.mode = Mode.SAME


def class_of_an_object_replaced():
    class A:
        scale = 2.0

    class B:
        scale = 3.0

    a = A()
    yield lambda x: x * a.scale
    a.__class__ = B


def methodcaller():
    class A:
        scale = 2.0

        def run(self):
            return self.scale

    a, run = A(), operator.methodcaller("run")
    yield lambda x: x * run(a)
    A.scale = 3.0


def user_getattr():
    class A:
        def __init__(self):
            self.values = {"scale": 2.0}

        def __getattr__(self, name):
            return self.values[name]

    a = A()
    yield lambda x: x * a.scale
    a.values["scale"] = 3.0


def user_getattribute():
    class A:
        def __init__(self):
            self.scale = 2.0

        def __getattribute__(self, name):
            return object.__getattribute__(self, name.removeprefix("the_"))

    a = A()
    yield lambda x: x * a.the_scale
    a.scale = 3.0


def module_getattr():
    module = types.ModuleType("lazy_values")
    values = {"scale": 2.0}
    module.__getattr__ = values.__getitem__  # type: ignore[method-assign]
    h = Holder(values=values)
    yield lambda x: x * module.scale * h.values["scale"]
    values["scale"] = 3.0


def property_of_an_object():
    class A:
        hidden = 2.0

        @property
        def scale(self):
            return self.hidden

    a = A()
    yield lambda x: x * a.scale
    a.hidden = 3.0


def descriptor():
    class Field:
        def __init__(self, value):
            self.value = value

        def __get__(self, instance, owner):
            return self.value

    class A:
        scale = Field(2.0)

    a = A()
    yield lambda x: x * a.scale
    vars(A)["scale"].value = 3.0


def cached_property_deleted():
    class A:
        hidden = 2.0

        @functools.cached_property
        def scale(self):
            return self.hidden

    a = A()
    yield lambda x: x * a.scale
    A.hidden = 3.0
    del a.scale


def many_arrays():
    layers = [Holder(weight=full(1), bias=full(n)) for n in range(70)]

    def f(x):
        for layer in layers:
            x = x * layer.weight + layer.bias
        return x

    yield f
    layers[66].bias = full(7)


def weak_reference():
    h = Holder(scale=2.0)
    reference = weakref.ref(h)
    yield lambda x: x * reference().scale
    h.scale = 3.0
    yield h


def weak_dict():
    h = Holder(scale=2.0)
    known = weakref.WeakValueDictionary({"h": h})
    yield lambda x: x * known["h"].scale
    h.scale = 3.0
    yield h
