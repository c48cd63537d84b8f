"""Canonical texts of graphs: equal exactly for graphs that are equal but for names and order."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyc_mlir.dialects.util.canonical import MAX_TRIALS, Vertex, canonical_text


def shuffled(vertices: Sequence[Vertex], seed: int) -> list[Vertex]:
    """The graph in another order, operands of commutative vertices in another order too."""
    chance = random.Random(seed)
    left, placed, made = set(range(len(vertices))), {}, []
    while left:
        ready = [n for n in sorted(left) if all(v in placed for v, _ in vertices[n].operands)]
        number = chance.choice(ready)
        left.remove(number)
        old = vertices[number]
        operands = [(placed[v], result) for v, result in old.operands]
        if old.commutative:
            chance.shuffle(operands)
        placed[number] = len(made)
        made.append(Vertex(old.label, tuple(operands), old.commutative, old.sharable))
    return made


@st.composite
def graphs(draw: st.DrawFn) -> list[Vertex]:
    count = draw(st.integers(1, 12))
    made = [Vertex(draw(st.sampled_from(["x", "y"])))]
    for number in range(1, count):
        commutative = draw(st.booleans())
        label = draw(st.sampled_from(["add", "mul"] if commutative else ["x", "sub", "exp"]))
        arity = {"x": 0, "exp": 1}.get(label, 2)
        operands = tuple((draw(st.integers(0, number - 1)), 0) for _ in range(arity))
        made.append(Vertex(label, operands, commutative))
    return made


@settings(max_examples=200, deadline=None)
@given(graphs(), st.integers(0, 1000))
def test_order_does_not_matter(graph, seed):
    assert canonical_text(shuffled(graph, seed)) == canonical_text(graph)


def parsed(text: str) -> list[Vertex]:
    """A graph from its text: nothing of it is lost."""
    made = []
    for line in text.splitlines():
        operands, _, label = line[1:].partition(") ")
        read = tuple((int(o[1:]), 0) for o in operands.split(", ") if o)
        made.append(Vertex(label, read, label in ("add", "mul")))
    return made


@settings(max_examples=200, deadline=None)
@given(graphs())
@pytest.mark.full
def test_text_says_all_of_the_graph(graph):
    text = canonical_text(graph)
    again = parsed(text)
    assert len(again) == len(graph)
    assert canonical_text(again) == text
    labels = sorted((v.label, len(v.operands)) for v in graph)
    assert sorted((v.label, len(v.operands)) for v in again) == labels


@pytest.mark.parametrize(
    ("left", "right"),
    [
        # One value used twice is not two values of one kind.
        ([Vertex("x"), Vertex("add", ((0, 0), (0, 0)), True)],
         [Vertex("x"), Vertex("x"), Vertex("add", ((0, 0), (1, 0)), True)]),
        # Operands of others do not change places.
        ([Vertex("x"), Vertex("y"), Vertex("sub", ((0, 0), (1, 0)))],
         [Vertex("x"), Vertex("y"), Vertex("sub", ((1, 0), (0, 0)))]),
        # Which result of an operand is read.
        ([Vertex("split"), Vertex("exp", ((0, 0),))],
         [Vertex("split"), Vertex("exp", ((0, 1),))]),
        # A label that looks like the rest of a line.
        ([Vertex("x"), Vertex("a\n(%0) b", ((0, 0),))],
         [Vertex("x"), Vertex("a", ((0, 0),)), Vertex("b", ((0, 0),))]),
    ],
)  # fmt: skip
def test_different_graphs_have_different_texts(left, right):
    assert canonical_text(left) != canonical_text(right)


def test_equal_ops_on_equal_operands_count_once_only_where_they_may():
    def twice(sharable: bool) -> list[Vertex]:
        made = [Vertex("exp", ((0, 0),), sharable=sharable) for _ in range(2)]
        return [Vertex("x"), *made, Vertex("add", ((1, 0), (2, 0)), True)]

    once = [Vertex("x"), Vertex("exp", ((0, 0),)), Vertex("add", ((1, 0), (1, 0)), True)]
    assert canonical_text(twice(True)) == canonical_text(once)
    assert canonical_text(twice(False)) != canonical_text(once)


def test_more_ties_than_trials_end():
    """Each sum of two constants of one type is a tie; there is no search beyond the bound."""
    graph = [Vertex("argument 0")]
    for _ in range(MAX_TRIALS):
        last = len(graph) - 1
        graph += [Vertex("constant"), Vertex("constant")]
        products = [Vertex("matmul", ((last, 0), (last + i, 0))) for i in (1, 2)]
        graph += [*products, Vertex("add", ((last + 3, 0), (last + 4, 0)), True)]
    assert canonical_text(shuffled(graph, 1)) == canonical_text(graph)


def test_deep_graphs_need_no_recursion():
    chain = [Vertex("x"), *(Vertex("exp", ((n, 0),)) for n in range(5000))]
    assert len(canonical_text(chain).splitlines()) == 5001


def test_equal_sums_are_one_whatever_the_order_of_their_operands():
    x, y = Vertex("x"), Vertex("y")
    sums = [
        Vertex("add", ((0, 0), (1, 0)), True, True),
        Vertex("add", ((1, 0), (0, 0)), True, True),
    ]
    for other, user in ((sums[1], (2, 3)), (sums[0], (2, 3)), (None, (2, 2))):
        graph = [x, y, sums[0], *([other] if other else [])]
        graph.append(Vertex("mul", tuple((u, 0) for u in user)))
        assert canonical_text(graph) == canonical_text(
            [x, y, sums[0], Vertex("mul", ((2, 0),) * 2)]
        )
