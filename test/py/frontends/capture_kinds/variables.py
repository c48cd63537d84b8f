"""Variables: globals, variables of enclosing functions, modules, context variables."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import contextvars
import sys
import threading
import types

import numpy as np

from capture_kinds.holder import full

MODULE = types.ModuleType("captured_helpers")
MODULE_SCALE, MODULE_ARRAY, MODULE_CONFIG = 2.0, np.ones(4, np.float32), {"scale": 2.0}


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


def variable_of_an_enclosing_function():
    scale = 2.0
    yield lambda x: x * scale
    scale = 3.0


def variable_two_functions_out():
    scale = 2.0

    def outer():
        def inner(x):
            return x * scale

        return inner

    yield lambda x: outer()(x)
    scale = 3.0


def small_array_in_place():
    weight = full(2)
    yield lambda x: x * weight
    weight[1] = 7


def number_of_another_type():
    scale = 2
    yield lambda x: np.mean(x.astype(np.int32) * scale)
    scale = 2.5


def sign_of_zero():
    zero = 0.0
    yield lambda x: x * zero
    zero = -0.0


def text():
    kind = "double"
    yield lambda x: x * 2 if kind == "double" else x
    kind = "same"


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


def context_variable():
    variable = contextvars.ContextVar("scale", default=2.0)
    yield lambda x: x * variable.get()
    variable.set(3.0)


def thread_local():
    local = threading.local()
    local.scale = 2.0
    yield lambda x: x * local.scale
    local.scale = 3.0
