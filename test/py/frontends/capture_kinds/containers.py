"""Lists, dicts, sets and the like, of the standard library and of the user's classes."""

# Attributes come and go here.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false

import array
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque

from capture_kinds.holder import Holder, full


def list_grows():
    scales = [2.0]
    yield lambda x: x * sum(scales)
    scales.append(3.0)


def list_in_a_tuple():
    pair = ([2.0], 1)
    yield lambda x: x * pair[0][0]
    pair[0][0] = 3.0


def long_list():
    scales = [float(n) for n in range(200)]
    yield lambda x: x * scales[150]
    scales[150] = 3.0


def many_arrays():
    layers = [Holder(weight=full(1), bias=full(n)) for n in range(70)]

    def f(x):
        for layer in layers:
            x = x * layer.weight + layer.bias
        return x

    yield f
    layers[66].bias = full(7)


def list_of_lists():
    rows = [[1.0, 2.0], [3.0]]
    yield lambda x: x * rows[0][1]
    rows[0][1] = 3.0


def keys_of_a_dict():
    weights = {"double": full(2)}
    yield lambda x: x * (2 if "double" in weights else 3)
    weights["triple"] = weights.pop("double")


def order_of_a_dict():
    weights = {"a": 2.0, "b": 3.0}
    yield lambda x: x * next(iter(weights.values()))
    weights["a"] = weights.pop("a")


def default_dict():
    weights = defaultdict(float, a=2.0)
    yield lambda x: x * weights["a"]
    weights["a"] = 3.0


def ordered_dict():
    weights = OrderedDict(a=2.0, b=3.0)
    yield lambda x: x * next(iter(weights.values()))
    weights.move_to_end("a")


def counter():
    weights = Counter(a=2)
    yield lambda x: x * weights["a"]
    weights["a"] += 1


def chain_map():
    inner = {"a": 2.0}
    weights = ChainMap({}, inner)
    yield lambda x: x * weights["a"]
    inner["a"] = 3.0


def user_dict():
    weights = UserDict(a=2.0)
    yield lambda x: x * weights["a"]
    weights["a"] = 3.0


def user_list():
    weights = UserList([2.0])
    yield lambda x: x * weights[0]
    weights[0] = 3.0


def mapping_proxy():
    inner = {"a": 2.0}
    weights = types.MappingProxyType(inner)
    yield lambda x: x * weights["a"]
    inner["a"] = 3.0


def subclass_of_list():
    class Layers(list):
        pass

    layers = Layers([2.0])
    layers.scale = 1.0
    yield lambda x: x * layers[0] * layers.scale
    layers[0] = 3.0


def attribute_of_a_subclass_of_list():
    class Layers(list):
        pass

    layers = Layers([2.0])
    layers.scale = 1.0
    yield lambda x: x * layers[0] * layers.scale
    layers.scale = 3.0


def subclass_of_dict():
    class Config(dict):
        __getattr__ = dict.__getitem__

    config = Config(scale=2.0)
    yield lambda x: x * config.scale
    config["scale"] = 3.0


def subclass_of_tuple():
    class Pair(tuple):
        pass

    pair = Pair((2.0,))
    pair.scale = 1.0
    yield lambda x: x * pair[0] * pair.scale
    pair.scale = 3.0


def deque_of_numbers():
    scales = deque([2.0, 1.0])
    yield lambda x: x * scales[0]
    scales.rotate()


def set_of_numbers():
    scales = {2.0}
    yield lambda x: x * sum(scales)
    scales.add(3.0)


def bytes_in_place():
    scales = bytearray([2])
    yield lambda x: x * scales[0]
    scales[0] = 3


def array_of_the_standard_library():
    scales = array.array("d", [2.0])
    yield lambda x: x * scales[0]
    scales[0] = 3.0


def view_of_memory():
    memory = bytearray([2])
    view = memoryview(memory)
    yield lambda x: x * view[0]
    memory[0] = 3


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
