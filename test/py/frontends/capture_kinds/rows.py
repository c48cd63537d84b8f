"""Kinds whose function is one expression: what is there before, the expression, the change.

A row of ``name | h = Holder(scale=2.0) | x * h.scale | h.scale = 3.0`` is the generator

    def name():
        h = Holder(scale=2.0)
        yield lambda x: x * h.scale
        h.scale = 3.0
"""

import argparse
import array
import contextvars
import functools
import operator
import threading
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from capture_kinds.holder import Holder, full

_NAMES = {
    "__name__": __name__, "Holder": Holder, "full": full, "np": np, "argparse": argparse,
    "array": array, "contextvars": contextvars, "functools": functools, "operator": operator,
    "threading": threading, "types": types, "ChainMap": ChainMap, "Counter": Counter,
    "OrderedDict": OrderedDict, "UserDict": UserDict, "UserList": UserList,
    "defaultdict": defaultdict, "deque": deque,
}  # fmt: skip
_ROWS = """
attribute | h = Holder(scale=2.0) | x * h.scale | h.scale = 3.0
attribute_of_an_attribute | h = Holder(inner=Holder(scale=2.0)) | x * h.inner.scale | h.inner.scale = 3.0
class_attribute_by_name | A = type("A", (), {"scale": 2.0}) | x * A.scale | A.scale = 3.0
class_attribute_by_instance | A = type("A", (), {"scale": 2.0}); a = A() | x * a.scale | A.scale = 3.0
instance_attribute_over_a_class_default | A = type("A", (), {"scale": 2.0}); a = A() | x * a.scale | a.scale = 3.0
instance_attribute_removed_from_over_a_class_default | A = type("A", (), {"scale": 2.0}); a = A(); a.scale = 3.0 | x * a.scale | del a.scale
base_class_attribute | A = type("A", (), {"scale": 2.0}); B = type("B", (A,), {}); c = type("C", (B,), {})() | x * c.scale | A.scale = 3.0
attribute_set_between_base_and_instance | A = type("A", (), {"scale": 2.0}); B = type("B", (A,), {}); b = B() | x * b.scale | B.scale = 3.0
metaclass_attribute | Meta = type("Meta", (type,), {"scale": 2.0}); A = Meta("A", (), {}) | x * A.scale | Meta.scale = 3.0
slot | A = type("A", (), {"__slots__": ("scale",)}); a = A(); a.scale = 2.0 | x * a.scale | a.scale = 3.0
slot_of_a_base | A = type("A", (), {"__slots__": ("scale",)}); b = type("B", (A,), {})(); b.scale = 2.0 | x * b.scale | b.scale = 3.0
slot_that_was_empty | A = type("A", (), {"__slots__": ("scale",)}); a = A() | x * getattr(a, "scale", 2.0) | a.scale = 3.0
simple_namespace | n = types.SimpleNamespace(scale=2.0) | x * n.scale | n.scale = 3.0
argparse_namespace | n = argparse.Namespace(scale=2.0) | x * n.scale | n.scale = 3.0
getattr_of_text | h = Holder(scale=2.0) | x * getattr(h, "scale") | h.scale = 3.0
getattr_of_made_text | h, number = Holder(scale1=2.0), 1 | x * getattr(h, f"scale{number}") | h.scale1 = 3.0
getattr_with_a_default | h = Holder() | x * getattr(h, "scale", 2.0) | h.scale = 3.0
hasattr_of_text | h = Holder() | x * 2 if hasattr(h, "bias") else x | h.bias = 3.0
vars_of_an_object | h = Holder(scale=2.0) | x * sum(vars(h).values()) | h.scale = 3.0
vars_gets_another | h = Holder(scale=2.0) | x * sum(vars(h).values()) | h.other = 3.0
dict_of_an_object | h = Holder(scale=2.0) | x * h.__dict__["scale"] | h.scale = 3.0
dict_of_an_object_replaced | h = Holder(scale=2.0) | x * h.scale | h.__dict__ = {"scale": 3.0}
attrgetter | h, read = Holder(scale=2.0), operator.attrgetter("scale") | x * read(h) | h.scale = 3.0
property_replaced | A = type("A", (), {"scale": property(lambda self: 2.0)}); a = A() | x * a.scale | A.scale = property(lambda self: 3.0)
list_grows | scales = [2.0] | x * sum(scales) | scales.append(3.0)
list_in_a_tuple | pair = ([2.0], 1) | x * pair[0][0] | pair[0][0] = 3.0
long_list | scales = [float(n) for n in range(200)] | x * scales[150] | scales[150] = 3.0
list_of_lists | rows = [[1.0, 2.0], [3.0]] | x * rows[0][1] | rows[0][1] = 3.0
keys_of_a_dict | weights = {"double": full(2)} | x * (2 if "double" in weights else 3) | weights["triple"] = weights.pop("double")
order_of_a_dict | weights = {"a": 2.0, "b": 3.0} | x * next(iter(weights.values())) | weights["a"] = weights.pop("a")
default_dict | weights = defaultdict(float, a=2.0) | x * weights["a"] | weights["a"] = 3.0
ordered_dict | weights = OrderedDict(a=2.0, b=3.0) | x * next(iter(weights.values())) | weights.move_to_end("a")
counter | weights = Counter(a=2) | x * weights["a"] | weights["a"] += 1
chain_map | inner = {"a": 2.0}; weights = ChainMap({}, inner) | x * weights["a"] | inner["a"] = 3.0
user_dict | weights = UserDict(a=2.0) | x * weights["a"] | weights["a"] = 3.0
user_list | weights = UserList([2.0]) | x * weights[0] | weights[0] = 3.0
mapping_proxy | inner = {"a": 2.0}; weights = types.MappingProxyType(inner) | x * weights["a"] | inner["a"] = 3.0
subclass_of_list | layers = type("Layers", (list,), {})([2.0]); layers.scale = 1.0 | x * layers[0] * layers.scale | layers[0] = 3.0
attribute_of_a_subclass_of_list | layers = type("Layers", (list,), {})([2.0]); layers.scale = 1.0 | x * layers[0] * layers.scale | layers.scale = 3.0
subclass_of_dict | config = type("Config", (dict,), {"__getattr__": dict.__getitem__})(scale=2.0) | x * config.scale | config["scale"] = 3.0
subclass_of_tuple | pair = type("Pair", (tuple,), {})((2.0,)); pair.scale = 1.0 | x * pair[0] * pair.scale | pair.scale = 3.0
deque_of_numbers | scales = deque([2.0, 1.0]) | x * scales[0] | scales.rotate()
set_of_numbers | scales = {2.0} | x * sum(scales) | scales.add(3.0)
bytes_in_place | scales = bytearray([2]) | x * scales[0] | scales[0] = 3
array_of_the_standard_library | scales = array.array("d", [2.0]) | x * scales[0] | scales[0] = 3.0
view_of_memory | memory = bytearray([2]); view = memoryview(memory) | x * view[0] | memory[0] = 3
helper_replaced | helpers = {"f": lambda x: x * 2}; outer = lambda x: helpers["f"](x) | outer(x) | helpers["f"] = lambda x: x * 3
keywords_of_a_partial | run = functools.partial(lambda x, k: x * k, k=2.0) | run(x) | run.keywords["k"] = 3.0
code_of_a_helper | helper, other = lambda x: x * 2, lambda x: x * 3 | helper(x) | helper.__code__ = other.__code__
default_of_a_helper | helper = lambda x, k=2.0: x * k | helper(x) | helper.__defaults__ = (3.0,)
keyword_default_of_a_helper | helper = lambda x, *, k=2.0: x * k | helper(x) | helper.__kwdefaults__["k"] = 3.0
keyword_defaults_replaced | helper = lambda x, *, k=2.0: x * k | helper(x) | helper.__kwdefaults__ = {"k": 3.0}
mutable_default | helper = lambda x, scales=[2.0]: x * scales[0] | helper(x) | helper.__defaults__[0][0] = 3.0
attribute_of_a_function | helper = lambda x: x * helper.scale; helper.scale = 2.0 | helper(x) | helper.scale = 3.0
partial_with_a_list | scales = [2.0]; run = functools.partial(lambda scales, x: x * scales[0], scales) | run(x) | scales[0] = 3.0
variable_of_an_enclosing_function | scale = 2.0 | x * scale | scale = 3.0
variable_two_functions_out | scale = 2.0; outer = lambda: lambda x: x * scale | outer()(x) | scale = 3.0
called_by_map | scale = [2.0]; helper = lambda x: x * scale[0] | next(map(helper, [x])) | scale[0] = 3.0
called_by_reduce | scale = [2.0]; helper = lambda x, y: x * scale[0] + y | functools.reduce(helper, [x, x]) | scale[0] = 3.0
small_array_in_place | weight = full(2) | x * weight | weight[1] = 7
number_of_another_type | scale = 2 | np.mean(x.astype(np.int32) * scale) | scale = 2.5
sign_of_zero | zero = 0.0 | x * zero | zero = -0.0
text | kind = "double" | x * 2 if kind == "double" else x | kind = "same"
context_variable | variable = contextvars.ContextVar("scale", default=2.0) | x * variable.get() | variable.set(3.0)
thread_local | local = threading.local(); local.scale = 2.0 | x * local.scale | local.scale = 3.0
"""  # noqa: E501


def _kind(row: str) -> Callable[[], Iterator[Any]]:
    name, before, expression, change = row.split(" | ")
    space: dict[str, Any] = dict(_NAMES)
    exec(f"def {name}():\n {before}\n yield lambda x: {expression}\n {change}", space)
    return space[name]


ROWS = [_kind(row) for row in _ROWS.strip().splitlines()]
