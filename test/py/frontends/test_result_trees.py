"""Results of a compiled function come in the lists, tuples and dicts that the function returns."""

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.artifact.signature import Signature, decode, filled
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.frontends.signatures import signature_of


def test_results_keep_their_structure():
    """A program gives results as the function returns them; without a text, as a tuple or alone."""
    shapes = {
        "alone": lambda x: x,
        "pair": lambda x: (x, x + 1),
        "one tuple": lambda x: (x,),
        "one list": lambda x: [x],
        "one dict": lambda x: {"y": x},
        "list": lambda x: [x, x + 1],
        "nested": lambda x: {"a": [x, (x + 1,)], 3: {True: x, None: ()}},
        "other keys": lambda x: {(1, 2): x},
    }
    expected = {
        "one tuple": (0,), "one list": [0], "one dict": {"y": 0}, "list": [0, 1],
        "nested": {"a": [0, (1,)], 3: {True: 2, None: ()}},
    }  # fmt: skip
    for name, function in shapes.items():
        module = trace(function, TensorSpec("f32", 3))
        made = signature_of(entry_function(module))
        again = from_data(Signature, to_data(made))
        tree = decode(again.results, len(made.outputs))
        assert (None if tree is None else filled(tree, range(4))) == expected.get(name), name
    for text in ("[", '["list", [1]]', '["set", [0]]', "7", '["list", [0, 0]]', "[" * 100_000):
        with pytest.raises(ValueError, match="tree of"):
            decode(text, 1)


def test_a_program_gives_one_entry_as_the_function_does(tmp_path):
    x = np.ones(3, np.float32)
    program = pyc_mlir.compile(lambda x: {"y": [x + 1]}, [x])
    program.save(tmp_path / "a.vmfb")
    for loaded in (program, pyc_mlir.load(tmp_path / "a.vmfb")):
        found = loaded(x)
        assert list(found) == ["y"] and type(found["y"]) is list
        np.testing.assert_array_equal(found["y"][0], x + 1)
