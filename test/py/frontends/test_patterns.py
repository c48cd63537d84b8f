"""Users' patterns: proved when registered, found in any spelling, replaced by a decision."""

import numpy as np
import pytest
from equivalence_mutants import takes

import pyc_mlir
from pyc_mlir import PycError, Tensor, nn, trace
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret
from pyc_mlir.patterns import PATTERNS, Pattern, find, pattern
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.equivalence.nodes import Graph
from pyc_mlir.tools import pyc_equiv, pyc_find

ROWS = Tensor["f32", 4, 8]


@pytest.fixture(autouse=True)
def own_patterns():
    before = dict(PATTERNS)
    yield
    PATTERNS.clear()
    PATTERNS.update(before)


def softmax() -> Pattern:
    @pattern(replacement=nn.softmax)
    @takes(ROWS)
    def spelled(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return spelled


@takes(Tensor["f32", 6, 10])
def model(x):
    first = np.exp(x * 2)
    hidden = (first / first.sum(-1, keepdims=True)) @ np.ones((10, 5), np.float32)
    second = np.exp(hidden - hidden.max(-1, keepdims=True))
    return second * (1 / second.sum(-1, keepdims=True))


@takes(Tensor["f32", 6, 10])
def near(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 1e-6)


def places(wanted: Pattern, function) -> list[str]:
    module = trace(function)
    with module.context:
        graph = Graph()
        return [p.type for p in find(wanted, graph.read(entry_function(module)), graph)]


def test_other_spellings_match_and_near_misses_do_not():
    wanted = softmax()
    assert places(wanted, model) == ["tensor<6x10xf32>", "tensor<6x5xf32>"]
    assert places(wanted, near) == []


def test_a_place_is_replaced_by_a_decision():
    softmax()
    module, x = trace(model), np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)
    before = interpret(module, [x])[0]
    context = PassContext()
    run_pipeline(module, "pyc-patterns,pyc-canonicalize", context)
    assert str(module).count("pyc.softmax") == 2
    assert [d.chosen for d in context.choices.log] == ["spelled", "spelled"]
    assert np.allclose(interpret(module, [x])[0], before, atol=1e-6)
    again = PassContext()
    run_pipeline(module, "pyc-patterns", again)
    assert not again.choices.log


def test_two_arguments_match_in_their_order():
    @pattern(replacement=lambda x, y: np.exp(x) / np.exp(y), allows_unsafe=True)
    @takes(ROWS)
    def quotient(x, y):
        return np.exp(x - y)

    @takes(ROWS)
    def program(a, b):
        return np.exp(b - a) + 1

    module = trace(program)
    x, y = (np.random.default_rng(i).normal(size=(4, 8)).astype(np.float32) for i in (1, 2))
    before = interpret(module, [x, y])[0]
    PATTERNS["quotient"] = quotient
    run_pipeline(module, "pyc-patterns", PassContext())
    assert np.allclose(interpret(module, [x, y])[0], before, atol=1e-5)


@pytest.mark.parametrize(
    ("replacement", "expected"),
    [
        (lambda x: x * nn.sigmoid(1.702 * x), "proved equal"),
        (lambda x: x, "proved equal"),
        ("no_such_op", "an op of `nn`"),
        (3, "a function or the name of an op"),
    ],
)
def test_a_replacement_without_a_proof_is_refused(replacement, expected):
    with pytest.raises(PycError, match=expected):

        @pattern(replacement=replacement)
        @takes(ROWS)
        def refused(x):
            return nn.gelu(x)

    assert "refused" not in PATTERNS


def test_a_replacement_that_overflows_is_refused_unless_it_is_wanted():
    def plain(x):
        return np.exp(x) / np.exp(x).sum(-1, keepdims=True)

    given = takes(ROWS)(lambda x: nn.softmax(x))
    with pytest.raises(PycError, match="as good in floats"):
        pattern(given, replacement=plain)
    assert isinstance(pattern(given, replacement=plain, allows_unsafe=True), Pattern)


def test_a_pattern_needs_sizes():
    for kind in (Tensor["f32", "n", 8], None):
        given = takes(kind)(lambda x: nn.softmax(x))
        with pytest.raises(PycError, match="static sizes"):
            pattern(given, replacement=nn.softmax)


def test_an_unknown_pattern_is_refused():
    with pytest.raises(PycError, match="INVALID_PIPELINE"):
        run_pipeline(trace(model), "pyc-patterns{names=nothing}", PassContext())


FILE = """\
import numpy as np
import pyc_mlir
from pyc_mlir import Tensor, nn

@pyc_mlir.pattern(replacement=nn.softmax)
def from_a_file(x: Tensor["f32", 4, 8]):
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)
"""


def test_the_tools(tmp_path, capsys):
    patterns, module = tmp_path / "patterns.py", tmp_path / "model.mlir"
    patterns.write_text(FILE)
    module.write_text(str(trace(model)))
    assert pyc_find.main([str(patterns), str(module)]) == 0
    said = capsys.readouterr()
    assert said.out.count("from_a_file") == 2 and "tensor<6x5xf32>" in said.out
    assert pyc_find.main(["softmax,rmsnorm", str(module)]) == 0
    assert pyc_find.main([str(module), str(module)]) == 1
    other = tmp_path / "near.mlir"
    other.write_text(str(trace(near)))
    assert pyc_equiv.main([str(module), str(module)]) == 0
    assert "structural" in capsys.readouterr().out
    assert pyc_equiv.main([str(module), str(other), "--json"]) in (3, 4)
    assert pyc_equiv.main([str(module), str(tmp_path / "missing.mlir")]) == 1


def test_a_compile_uses_the_pattern():
    wanted = softmax()
    program = pyc_mlir.compile(model, passes=wanted.passes(), cache=False)
    chosen = [d for d in program.artifact.decisions if d.site.pass_name == "pyc-patterns"]
    assert len(chosen) == 2
    x = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)
    assert np.allclose(program(x), model(x), atol=1e-5)
