"""Attributes of objects, of classes and their bases, under all ways to read them."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import argparse
import enum
import functools
import operator
import types
from dataclasses import asdict, dataclass
from typing import NamedTuple

from capture_kinds.holder import Holder


def attribute():
    h = Holder(scale=2.0)
    yield lambda x: x * h.scale
    h.scale = 3.0


def attribute_of_an_attribute():
    h = Holder(inner=Holder(scale=2.0))
    yield lambda x: x * h.inner.scale
    h.inner.scale = 3.0


def class_attribute_by_name():
    class A:
        scale = 2.0

    yield lambda x: x * A.scale
    A.scale = 3.0


def class_attribute_by_instance():
    class A:
        scale = 2.0

    a = A()
    yield lambda x: x * a.scale
    A.scale = 3.0


def instance_attribute_over_a_class_default():
    class A:
        scale = 2.0

    a = A()
    yield lambda x: x * a.scale
    a.scale = 3.0


def instance_attribute_removed_from_over_a_class_default():
    class A:
        scale = 2.0

    a = A()
    a.scale = 3.0
    yield lambda x: x * a.scale
    del a.scale


def base_class_attribute():
    class A:
        scale = 2.0

    class B(A):
        pass

    class C(B):
        pass

    c = C()
    yield lambda x: x * c.scale
    A.scale = 3.0


def attribute_set_between_base_and_instance():
    class A:
        scale = 2.0

    class B(A):
        pass

    b = B()
    yield lambda x: x * b.scale
    B.scale = 3.0


def class_method_variable():
    class A:
        scale = 2.0

        @classmethod
        def run(cls, x):
            return x * cls.scale

    yield lambda x: A.run(x)
    A.scale = 3.0


def metaclass_attribute():
    class Meta(type):
        scale = 2.0

    class A(metaclass=Meta):
        pass

    yield lambda x: x * A.scale
    Meta.scale = 3.0


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


def slot():
    class A:
        __slots__ = ("scale",)

    a = A()
    a.scale = 2.0
    yield lambda x: x * a.scale
    a.scale = 3.0


def slot_of_a_base():
    class A:
        __slots__ = ("scale",)

    class B(A):
        pass

    b = B()
    b.scale = 2.0
    yield lambda x: x * b.scale
    b.scale = 3.0


def slot_that_was_empty():
    class A:
        __slots__ = ("scale",)

    a = A()
    yield lambda x: x * getattr(a, "scale", 2.0)
    a.scale = 3.0


def simple_namespace():
    n = types.SimpleNamespace(scale=2.0)
    yield lambda x: x * n.scale
    n.scale = 3.0


def argparse_namespace():
    n = argparse.Namespace(scale=2.0)
    yield lambda x: x * n.scale
    n.scale = 3.0


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


def getattr_of_text():
    h = Holder(scale=2.0)
    yield lambda x: x * getattr(h, "scale")  # noqa: B009
    h.scale = 3.0


def getattr_of_made_text():
    h, number = Holder(scale1=2.0), 1
    yield lambda x: x * getattr(h, f"scale{number}")
    h.scale1 = 3.0


def getattr_with_a_default():
    h = Holder()
    yield lambda x: x * getattr(h, "scale", 2.0)
    h.scale = 3.0


def hasattr_of_text():
    h = Holder()
    yield lambda x: x * 2 if hasattr(h, "bias") else x
    h.bias = 3.0


def vars_of_an_object():
    h = Holder(scale=2.0)
    yield lambda x: x * sum(vars(h).values())
    h.scale = 3.0


def vars_gets_another():
    h = Holder(scale=2.0)
    yield lambda x: x * sum(vars(h).values())
    h.other = 3.0


def dict_of_an_object():
    h = Holder(scale=2.0)
    yield lambda x: x * h.__dict__["scale"]
    h.scale = 3.0


def dict_of_an_object_replaced():
    h = Holder(scale=2.0)
    yield lambda x: x * h.scale
    h.__dict__ = {"scale": 3.0}


def class_of_an_object_replaced():
    class A:
        scale = 2.0

    class B:
        scale = 3.0

    a = A()
    yield lambda x: x * a.scale
    a.__class__ = B


def attrgetter():
    h, read = Holder(scale=2.0), operator.attrgetter("scale")
    yield lambda x: x * read(h)
    h.scale = 3.0


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


def property_replaced():
    class A:
        scale = property(lambda self: 2.0)

    a = A()
    yield lambda x: x * a.scale
    A.scale = property(lambda self: 3.0)


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
