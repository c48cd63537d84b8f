"""Functions and methods: their code, defaults, variables, and the ways to call them."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import functools
import itertools
import operator

from capture_kinds.holder import Holder


def helper_replaced():
    helpers = {"f": lambda x: x * 2}

    def outer(x):
        return helpers["f"](x)

    yield lambda x: outer(x)
    helpers["f"] = lambda x: x * 3


def code_of_a_helper():
    def helper(x):
        return x * 2

    def other(x):
        return x * 3

    yield lambda x: helper(x)
    helper.__code__ = other.__code__


def code_of_the_function_itself():
    def f(x):
        return x * 2

    def other(x):
        return x * 3

    yield f
    f.__code__ = other.__code__


def default_of_a_helper():
    def helper(x, k=2.0):
        return x * k

    yield lambda x: helper(x)
    helper.__defaults__ = (3.0,)


def keyword_default_of_a_helper():
    def helper(x, *, k=2.0):
        return x * k

    yield lambda x: helper(x)
    helper.__kwdefaults__["k"] = 3.0


def keyword_defaults_replaced():
    def helper(x, *, k=2.0):
        return x * k

    yield lambda x: helper(x)
    helper.__kwdefaults__ = {"k": 3.0}


def mutable_default():
    def helper(x, scales=[2.0]):  # noqa: B006
        return x * scales[0]

    yield lambda x: helper(x)
    helper.__defaults__[0][0] = 3.0


def attribute_of_a_function():
    def helper(x):
        return x * helper.scale

    helper.scale = 2.0
    yield lambda x: helper(x)
    helper.scale = 3.0


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


def partial_with_a_list():
    def helper(scales, x):
        return x * scales[0]

    scales = [2.0]
    run = functools.partial(helper, scales)
    yield lambda x: run(x)
    scales[0] = 3.0


def keywords_of_a_partial():
    run = functools.partial(lambda x, k: x * k, k=2.0)
    yield lambda x: run(x)
    run.keywords["k"] = 3.0


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


def called_by_map():
    scale = [2.0]

    def helper(x):
        return x * scale[0]

    yield lambda x: next(map(helper, [x]))
    scale[0] = 3.0


def called_by_reduce():
    scale = [2.0]

    def helper(x, y):
        return x * scale[0] + y

    yield lambda x: functools.reduce(helper, [x, x])
    scale[0] = 3.0


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
