"""pyc-fuse: which groups are formed, what they compute, and who decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from op_modules import module_of, ops_of

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType, tensor
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Recipe, Site
from pyc_mlir.pipelines.choices.log import load_recipe, write_log
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.fuse import Fuse, FusionGraph

Program = Callable[..., Any]
X = tensor("f32", 4, 4)
DYNAMIC = tensor("f32", None, 4)
W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
V = W[0].copy()
FILTERS = np.random.default_rng(1).normal(size=(2, 3, 3, 3)).astype(np.float32)


@pytest.fixture
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


@dataclass
class Names:
    """A policy that answers by a rule of the test."""

    answer: Callable[[Site, Sequence[Alternative]], str]
    name: str = "test"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        return self.answer(site, alternatives)


KEEP = Names(lambda site, alternatives: "keep")


def arrays_of(types: Sequence[TensorType]) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.normal(size=[d or 3 for d in t.shape]).astype(t.dtype) for t in types]


def fused(
    program: Program, types: Sequence[TensorType], choices: Choices, **options: int
) -> ir.Module:
    """The program after the pass, shown to compute the same bits as before."""
    module = module_of(program, types, ir.Context.current)
    arrays = arrays_of(types)
    before = interpret(module, arrays)
    Fuse(**options).run(module, PassContext(choices=choices))
    assert module.operation.verify()
    for got, want in zip(interpret(module, arrays), before, strict=True):
        assert got.tobytes() == want.tobytes()
    return module


def groups_of(module: ir.Module) -> list[tuple[str, list[str]]]:
    """Kind and members of each group, which the attribute and the body agree on."""
    found = []
    for op in ops_of(module):
        if op.name != "pyc.group":
            continue
        body = [o.operation.name.removeprefix("pyc.") for o in op.regions[0].blocks[0].operations]
        names = [ir.StringAttr(a).value for a in ir.ArrayAttr(op.attributes["pyc.fused"])]
        assert body == [*names, "yield"]
        found.append((ir.StringAttr(op.attributes["kind"]).value, names))
    return found


def conv_block(b, x):
    y = b.conv2d(x, FILTERS, pads=(1, 1, 1, 1))
    bias = b.constant(np.array([0.5, -1], np.float32).reshape(2, 1, 1))
    return b.relu(b.add(y, bias))


def residual(b, x):
    return b.add(b.relu(b.add(b.matmul(x, W), V)), x)


def silu_diamond(b, x):
    y = b.matmul(x, W)
    return b.mul(y, b.sigmoid(y))


def cluster(b, x):
    return b.exp(b.mul(b.add(x, b.neg(x)), b.tanh(x)))


def norm_tail(b, x):
    return b.mul(b.layernorm(x, V, V), b.scalar(2, x))


def extended(b, x, y):
    first = b.concat(x, y, axis=0)
    return b.concat(b.relu(first), b.relu(b.concat(first, x, axis=0)), axis=0)


# A program, its groups, and its types unless it takes one X.
FORMED: dict[str, Any] = {
    "bias and activation": (
        lambda b, x: b.relu(b.add(b.matmul(x, W), V)),
        [("contraction", ["matmul", "add", "relu"])],
    ),
    "a dynamic batch": (
        lambda b, x: b.relu(b.add(b.matmul(x, W), V)),
        [("contraction", ["matmul", "add", "relu"])],
        (DYNAMIC,),
    ),
    "a convolution": (
        conv_block,
        [("contraction", ["conv2d", "add", "relu"])],
        (tensor("f32", 1, 3, 5, 5),),
    ),
    "a residual add": (residual, [("contraction", ["matmul", "add", "relu", "add"])]),
    "a diamond": (silu_diamond, [("contraction", ["matmul", "sigmoid", "mul"])]),
    "two layers": (
        lambda b, x: b.relu(b.matmul(b.relu(b.matmul(x, W)), W)),
        [("contraction", ["matmul", "relu"])] * 2,
    ),
    "a cluster": (cluster, [("elementwise", ["neg", "add", "tanh", "mul", "exp"])]),
    "a norm": (norm_tail, [("row", ["layernorm", "mul"])]),
    "a softmax": (lambda b, x: b.log(b.softmax(x)), [("row", ["softmax", "log"])]),
    "attention": (
        lambda b, x: b.add(b.attention(x, x, x, scale=0.5), x),
        [("attention", ["attention", "add"])],
    ),
    "a pool": (
        lambda b, x: b.relu(b.max_pool2d(x, kernel=(2, 2))),
        [("window", ["max_pool2d", "relu"])],
        (tensor("f32", 1, 2, 4, 4),),
    ),
    "parts and what follows": (
        lambda b, x: b.relu(b.concat(b.concat(x, x, axis=1), b.concat(x, x, axis=-1), axis=1)),
        [("concat", ["concat", "concat", "concat", "relu"])],
    ),
    "a concatenation that another one extends": (
        extended,
        [("concat", ["concat", "relu"]), ("concat", ["concat", "concat", "relu"])],
        (X, X),
    ),
    "concatenations along two axes": (
        lambda b, x: b.relu(b.concat(b.concat(x, x, axis=1), b.concat(x, x, axis=1), axis=0)),
        [("concat", ["concat", "relu"])],
    ),
    "an epilogue that a shape ends": (
        lambda b, x: b.tanh(b.reduce_sum(b.relu(b.matmul(x, W)), axes=(0,))),
        [("contraction", ["matmul", "relu"])],
    ),
    "an epilogue that ends where a value is needed twice": (
        lambda b, x: (lambda y: b.matmul(b.exp(y), y))(b.relu(b.matmul(x, W))),
        [("contraction", ["matmul", "relu"])],
    ),
}


@pytest.mark.parametrize("name", FORMED)
def test_formed(name, context):
    program, expected, *given = FORMED[name]
    (types,) = given or [(X,)]
    assert groups_of(fused(program, types, Choices())) == expected


NOT_FORMED: dict[str, Program] = {
    "a matmul alone": lambda b, x: b.matmul(x, W),
    "one elementwise op": lambda b, x: b.relu(x),
    "a producer that is needed elsewhere": lambda b, x: (lambda y: b.matmul(b.relu(y), y))(
        b.matmul(x, W)
    ),
    "an op that widens its operand": lambda b, x: b.add(b.reduce_sum(b.matmul(x, W), axes=(0,)), x),
    "movement between": lambda b, x: b.relu(b.transpose(b.matmul(x, W), permutation=(1, 0))),
}


@pytest.mark.parametrize("name", NOT_FORMED)
def test_not_formed(name, context):
    assert groups_of(fused(NOT_FORMED[name], (X,), Choices())) == []


def test_a_returned_value_is_a_use(context):
    text = """
func.func @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = "pyc.matmul"(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "pyc.relu"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
}"""
    module = ir.Module.parse(text)
    Fuse().run(module, PassContext())
    assert groups_of(module) == []


def test_groups_of_an_earlier_run_stay(context):
    module = fused(residual, (X,), Choices())
    once = str(module)
    assert Fuse().run(module, PassContext()) == {"groups": 0, "fused ops": 0}
    assert str(module) == once


def test_a_value_that_a_group_captures_is_a_use(context):
    """The matmul's result is read inside an earlier group: it cannot become a part of another."""
    text = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "pyc.group"() ({
    %3 = "pyc.exp"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    "pyc.yield"(%3) : (tensor<4x4xf32>) -> ()
  }) {kind = "elementwise"} : () -> tensor<4x4xf32>
  %2 = "pyc.relu"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = "pyc.matmul"(%1, %2) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %4 : tensor<4x4xf32>
}"""
    module = ir.Module.parse(text)
    Fuse().run(module, PassContext())
    assert module.operation.verify()
    assert len(groups_of_all(module)) == 1


def groups_of_all(module: ir.Module) -> list[ir.Operation]:
    return [op for op in ops_of(module) if op.name == "pyc.group"]


@pytest.mark.parametrize("limit, sizes", [(2, [2, 2]), (3, [3]), (4, [4]), (1, [])])
def test_groups_are_as_large_as_allowed(limit, sizes, context):
    module = fused(residual, (X,), Choices(), max_ops=limit)
    assert [len(members) for _, members in groups_of(module)] == sizes


def test_statistics(context):
    module = module_of(residual, (X,), context)
    assert Fuse().run(module, PassContext()) == {"groups": 1, "fused ops": 4}


def test_a_group_has_the_places_of_its_members(context):
    text = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("a.py":1:1)
  %1 = "pyc.relu"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32> loc("a.py":2:1)
  return %1 : tensor<4x4xf32>
}"""
    module = ir.Module.parse(text)
    Fuse().run(module, PassContext())
    (group,) = groups_of_all(module)
    assert str(group.location) == 'loc(fused["a.py":1:1, "a.py":2:1])'


# Who decides.


def test_every_length_of_an_epilogue_is_offered_with_its_traffic(context):
    choices = Choices()
    fused(residual, (X,), choices)
    (decision,) = choices.log
    assert [a.name for a in decision.alternatives] == [
        "fuse:matmul+add+relu+add",
        "fuse:matmul+add+relu",
        "fuse:matmul+add",
        "keep",
    ]
    costs = [a.cost.traffic_bytes for a in decision.alternatives if a.cost is not None]
    assert costs == [128, 256, 384, 512]
    assert decision.chosen == "fuse:matmul+add+relu+add"
    assert decision.decided_by == "heuristic"
    assert decision.site.pass_name == "pyc-fuse"


def test_costs_are_unknown_for_dynamic_shapes(context):
    choices = Choices()
    fused(residual, (DYNAMIC,), choices)
    assert {a.cost for d in choices.log for a in d.alternatives} == {None}


def test_keeping_says_why(context):
    choices = Choices()
    fused(NOT_FORMED["a producer that is needed elsewhere"], (X,), choices)
    (keep,) = choices.log[0].alternatives
    assert keep.name == "keep"
    assert "needed elsewhere" in keep.reason


@pytest.mark.parametrize("name", FORMED)
def test_a_policy_may_keep_everything(name, context):
    program, _, *given = FORMED[name]
    (types,) = given or [(X,)]
    choices = Choices(KEEP)
    module = fused(program, types, choices)
    assert groups_of(module) == []
    assert {(d.chosen, d.decided_by) for d in choices.log} == {("keep", "test")}
    assert str(module) == str(module_of(program, types, context))


def test_a_policy_may_take_a_part(context):
    policy = Names(lambda site, alternatives: alternatives[-2].name)
    assert groups_of(fused(residual, (X,), Choices(policy))) == [
        ("contraction", ["matmul", "add"]),
        ("elementwise", ["relu", "add"]),
    ]


def test_a_policy_that_answers_something_else_is_refused(context):
    module = module_of(residual, (X,), context)
    choices = Choices(Names(lambda site, alternatives: "fuse:everything"))
    with pytest.raises(PycError, match="policy `test` answered 'fuse:everything'") as caught:
        Fuse().run(module, PassContext(choices=choices))
    assert caught.value.code is ReasonCode.INVALID_CHOICE
    assert choices.log == ()
    assert str(module) == str(module_of(residual, (X,), context))


def every_program(b, x):
    y = residual(b, norm_tail(b, silu_diamond(b, cluster(b, x))))
    return b.add(b.softmax(y), b.reduce_sum(y, axes=(1,), keepdims=True))


@pytest.mark.parametrize(
    "policy",
    [None, KEEP, Names(lambda s, a: a[-1].name), Names(lambda s, a: a[len(a) // 2].name)],
    ids=["default", "keep", "last", "middle"],
)
def test_the_recipe_of_a_log_replays_to_the_same_module(policy, context, tmp_path):
    choices = Choices(policy) if policy is not None else Choices()
    text = str(fused(every_program, (X,), choices))
    write_log(choices.log, tmp_path / "log.jsonl")
    again = Choices(recipe=load_recipe(tmp_path / "log.jsonl"))
    assert str(fused(every_program, (X,), again)) == text
    write_log(again.log, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "log.jsonl").read_bytes()


TWO_FUNCTIONS = """
func.func @fused(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "pyc.relu"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
func.func @kept(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = "pyc.matmul"(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "pyc.relu"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1, %0 : tensor<4x4xf32>, tensor<4x4xf32>
}"""


def test_equal_ops_of_two_functions_are_two_sites(context):
    first = Choices()
    module = ir.Module.parse(TWO_FUNCTIONS)
    run_pipeline(module, "pyc-fuse", PassContext(choices=first))
    assert [d.chosen for d in first.log] == ["fuse:matmul+relu", "keep"]
    assert len({d.site.key for d in first.log}) == 2
    again = ir.Module.parse(TWO_FUNCTIONS)
    run_pipeline(again, "pyc-fuse", PassContext(choices=Choices(recipe=Recipe.from_log(first.log))))
    assert str(again) == str(module)


def test_a_recipe_of_another_program_is_refused(context):
    choices = Choices()
    fused(residual, (X,), choices)
    (decision,) = choices.log
    module = module_of(lambda b, x: b.relu(b.matmul(x, W)), (X,), context)
    replay = Choices(recipe=Recipe({decision.site.key: decision.chosen}))
    with pytest.raises(PycError, match=r"the recipe answered 'fuse:matmul\+add") as caught:
        Fuse().run(module, PassContext(choices=replay))
    assert caught.value.code is ReasonCode.RECIPE_MISMATCH


def test_a_recipe_that_lacks_a_site_leaves_it_to_the_policy(context):
    choices = Choices(KEEP, Recipe({}))
    assert groups_of(fused(residual, (X,), choices)) == []
    assert {d.decided_by for d in choices.log} == {"test"}


def test_names_among_alternatives_are_unique(context):
    """Under a limit, two groups of three adds would be called the same."""

    def program(b, x):
        y = b.add(b.add(x, b.constant(W)), b.add(x, x))
        return b.add(y, b.constant(V))

    choices = Choices()
    fused(program, (X,), choices, max_ops=3)
    for decision in choices.log:
        names = [a.name for a in decision.alternatives]
        assert len(set(names)) == len(names)


def test_every_kind_of_anchor_is_formed_above():
    kinds = {kind for _, groups, *_ in FORMED.values() for kind, _ in groups}
    assert kinds == {d.anchor for d in OPS.values()} - {""}


# Fusion's analysis without MLIR: the groups with a single result.


@st.composite
def chains(draw):
    """Users by position (all behind it) and some members, in order."""
    size = draw(st.integers(1, 12))
    users = [
        sorted(draw(st.sets(st.integers(i + 1, size - 1), max_size=3))) if i + 1 < size else []
        for i in range(size)
    ]
    members = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
    return users, tuple(members)


@given(chains())
def test_closed_prefixes_are_those_with_one_result(chain):
    graph = FusionGraph.__new__(FusionGraph)
    graph.users, members = chain
    wanted = [
        n for n in range(len(members), 1, -1) if graph.escapes(members[:n]) == [members[n - 1]]
    ]
    assert graph.closed_prefixes(members) == wanted


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(PycError, match=f"`max-ops`: expected 1 or more, got {limit}") as caught:
        Fuse(max_ops=limit)
    assert caught.value.code is ReasonCode.INVALID_PIPELINE
    assert Fuse(max_ops=1).max_ops == 1
