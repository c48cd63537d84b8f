"""Functions and methods, the ways to call them, and their variables; globals and modules."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import functools
import itertools
import operator
import sys
import types

import numpy as np

from capture_kinds.holder import Holder

MODULE = types.ModuleType("captured_helpers")
MODULE_SCALE, MODULE_ARRAY, MODULE_CONFIG = 2.0, np.ones(4, np.float32), {"scale": 2.0}


def code_of_the_function_itself():
    def f(x):
        return x * 2

    def other(x):
        return x * 3

    yield f
    f.__code__ = other.__code__


def variable_of_a_wrapped_helper():
    scale = 2.0

    def twice(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) * scale

        return wrapper

    @twice
    def helper(x):
        return x + 1

    yield lambda x: helper(x)
    scale = 3.0


def variable_under_a_wrapper():
    scale = 2.0

    def plain(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x)

        return wrapper

    @plain
    def helper(x):
        return x * scale

    yield lambda x: helper(x)
    scale = 3.0


def wrapper_on_the_function_itself():
    settings = {"scale": 2.0}

    def scaled(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) * settings["scale"]

        return wrapper

    yield scaled(lambda x: x + 1)
    settings["scale"] = 3.0


def partial_method():
    class A:
        scale = 2.0

        def run(self, x, power):
            return x * self.scale**power

        once = functools.partialmethod(run, power=1)

    a = A()
    yield lambda x: a.once(x)
    a.scale = 3.0


def bound_method():
    class A:
        scale = 2.0

        def run(self, x):
            return x * self.scale

    run = A().run
    yield lambda x: run(x)
    run.__self__.scale = 3.0


def method_replaced_on_the_class():
    class A:
        def run(self, x):
            return x * 2

    a = A()
    yield lambda x: a.run(x)
    A.run = lambda self, x: x * 3  # type: ignore[method-assign]


def method_replaced_on_the_instance():
    class A:
        def run(self, x):
            return x * 2

    a = A()
    yield lambda x: a.run(x)
    a.run = lambda x: x * 3  # type: ignore[method-assign]


def method_of_a_base_by_super():
    class A:
        scale = 2.0

        def run(self, x):
            return x * A.scale

    class B(A):
        def run(self, x):
            return super().run(x) + 1

    b = B()
    yield lambda x: b.run(x)
    A.scale = 3.0


def recursion_into_methods():
    class Node:
        def __init__(self, scale, child=None):
            self.scale, self.child = scale, child

        def run(self, x):
            x = x * self.scale
            return x if self.child is None else self.child.run(x)

    root = Node(2.0, Node(2.0, Node(2.0)))
    yield lambda x: root.run(x)
    root.child.child.scale = 3.0


def static_method():
    scale = [2.0]

    class A:
        @staticmethod
        def run(x):
            return x * scale[0]

    yield lambda x: A.run(x)
    scale[0] = 3.0


def helper_in_a_cache_that_is_cleared():
    settings = {"scale": 2.0}

    @functools.lru_cache
    def scale():
        return settings["scale"]

    scale()
    yield lambda x: x * scale()
    settings["scale"] = 3.0
    scale.cache_clear()


def what_a_cached_helper_returned():
    @functools.lru_cache
    def config():
        return Holder(scale=2.0)

    config()
    yield lambda x: x * config().scale
    config().scale = 3.0


def list_that_a_cached_helper_returned():
    @functools.lru_cache
    def config():
        return [2.0]

    config()
    yield lambda x: x * config()[0]
    config()[0] = 3.0


def single_dispatch():
    @functools.singledispatch
    def scale(x):
        return 2.0

    h = Holder()
    yield lambda x: x * scale(h)
    scale.register(Holder, lambda h: 3.0)


def generator_function():
    scales = [2.0, 1.0]

    def steps():
        yield from scales

    yield lambda x: functools.reduce(operator.mul, steps(), x)
    scales[0] = 3.0


def helper_out_of_reach_of_names():
    def make():
        scale = Holder(value=2.0)

        def helper(x):
            return x * scale.value

        return helper, scale

    helper, scale = make()
    functions = itertools.repeat(helper)
    yield lambda x: next(functions)(x)
    scale.value = 3.0


def registry_made_by_a_decorator():
    class Registry:
        def __init__(self):
            self.known = {}

        def register(self, function):
            self.known[function.__name__] = function
            return function

    registry = Registry()

    @registry.register
    def double(x):
        return x * 2

    yield lambda x: registry.known["double"](x)
    registry.known["double"] = lambda x: x * 3


def object_that_counts_something_else():
    class A:
        _version = 1

        def __init__(self):
            self.scale = 2.0

    a = A()
    yield lambda x: x * a.scale
    a.scale = 3.0


def iterator_of_objects():
    objects = itertools.cycle([Holder(scale=2.0)])
    h = next(objects)
    yield lambda x: x * next(objects).scale
    h.scale = 3.0


def callable_object():
    class A:
        def __init__(self):
            self.scale = 2.0

        def __call__(self, x):
            return x * self.scale

    a = A()
    yield a
    a.scale = 3.0


def global_number():
    global MODULE_SCALE
    MODULE_SCALE = 2.0
    yield lambda x: x * MODULE_SCALE
    MODULE_SCALE = 3.0


def global_array():
    global MODULE_ARRAY
    yield lambda x: x * MODULE_ARRAY
    MODULE_ARRAY = MODULE_ARRAY * 2


def global_that_was_not_there():
    globals().pop("LATE_GLOBAL", None)

    def f(x):
        try:
            return x * LATE_GLOBAL  # pyright: ignore[reportUndefinedVariable]
        except NameError:
            return x

    yield f
    globals()["LATE_GLOBAL"] = 3.0


def element_of_a_global():
    MODULE_CONFIG["scale"] = 2.0
    yield lambda x: x * MODULE_CONFIG["scale"]
    MODULE_CONFIG["scale"] = 3.0


def module_attribute():
    MODULE.scale = 2.0
    yield lambda x: x * MODULE.scale
    MODULE.scale = 3.0


def module_by_import_inside():
    sys.modules["captured_helpers"] = MODULE
    MODULE.scale = 2.0

    def f(x):
        import captured_helpers  # pyright: ignore[reportMissingImports]

        return x * captured_helpers.scale

    yield f
    MODULE.scale = 3.0


def helper_of_a_module():
    MODULE.helper = lambda x: x * 2
    yield lambda x: MODULE.helper(x)
    MODULE.helper = lambda x: x * 3
