"""Ids of works: what they depend on, and what they must not depend on."""

from dataclasses import replace

import numpy as np
import pytest

import pyc_mlir.dialects.ops  # noqa: F401
from pyc_mlir.dialects.opdef import OPS, Trait
from pyc_mlir.dialects.types import tensor
from pyc_mlir.pipelines.target.work import PREFIX, Input, Work, WorkOp, work_id, work_text

X, W, B = tensor("f32", 8, 16), tensor("f32", 16, 4), tensor("f32", 4)
OUT = tensor("f32", 8, 4)


def layer(seed: int = 0, maker: str = "", readers: tuple[str, ...] = ("matmul",)) -> Work:
    """relu(x @ w + b) with the weights of a seed."""
    chance = np.random.default_rng(seed)
    w, b = (chance.normal(size=size).astype(np.float32) for size in ((16, 4), (4,)))
    inputs = (Input(X, None, maker), Input(W, lambda: w), Input(B, lambda: b))
    nodes = (
        WorkOp("matmul", (0, 1), {"transpose_a": False, "transpose_b": False}, OUT),
        WorkOp("add", (3, 2), {}, OUT),
        WorkOp("relu", (4,), {}, OUT),
    )
    return Work(inputs, nodes, readers)


def test_equal_layers_and_retrained_models_have_equal_ids():
    assert work_id(layer(0)) == work_id(layer(1)) == work_id(layer(0, maker="relu"))


def test_operands_of_sums_may_change_places():
    work = layer()
    add = replace(work.nodes[1], operands=(2, 3))
    assert work_id(replace(work, nodes=(work.nodes[0], add, work.nodes[2]))) == work_id(work)


def test_the_order_in_which_inputs_are_read_does_not_matter():
    work = layer()
    x, w, b = work.inputs
    nodes = (
        replace(work.nodes[0], operands=(2, 1)),
        replace(work.nodes[1], operands=(3, 0)),
        work.nodes[2],
    )
    assert work_id(replace(work, inputs=(b, w, x), nodes=nodes)) == work_id(work)


def changed(place: int, **changes: object) -> Work:
    work = layer()
    node = replace(work.nodes[place], **changes)
    return replace(work, nodes=(*work.nodes[:place], node, *work.nodes[place + 1 :]))


def with_input(place: int, value: Input) -> Work:
    work = layer()
    return replace(work, inputs=(*work.inputs[:place], value, *work.inputs[place + 1 :]))


DIFFERENT = {
    "op": changed(2, name="exp"),
    "parameter": changed(0, params={"transpose_a": False, "transpose_b": True}),
    "float parameter": changed(2, params={"alpha": 0.5}),
    "other float": changed(2, params={"alpha": 0.25}),
    "result type": changed(2, type=tensor("f16", 8, 4)),
    "operands of a product": changed(0, operands=(1, 0)),
    "size": with_input(0, Input(tensor("f32", 9, 16))),
    "dynamic size": with_input(0, Input(tensor("f32", None, 16))),
    "element type": with_input(0, Input(tensor("f16", 8, 16))),
    "constness": with_input(1, Input(W)),
    "readers": layer(readers=("softmax",)),
    "more readers": layer(readers=("matmul", "matmul")),
    "fewer ops": replace(layer(), nodes=layer().nodes[:2]),
    "none of these": layer(),
}


def test_everything_else_changes_the_id():
    assert len({work_id(work) for work in DIFFERENT.values()}) == len(DIFFERENT)


def test_the_text_is_for_people_too():
    assert work_text(layer()).splitlines()[0] == "work 1"
    assert "() constant tensor<16x4xf32>" in work_text(layer())
    assert work_id(layer()).startswith(PREFIX)


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if op.has(Trait.COMMUTATIVE)))
def test_commutative_ops_are_commutative(name):
    chance = np.random.default_rng(0)
    a, b = chance.integers(-9, 9, (2, 50)).astype(np.int32)
    reference = OPS[name].reference
    np.testing.assert_array_equal(reference(a, b), reference(b, a))


def test_a_parameter_of_an_unknown_kind_is_our_fault():
    with pytest.raises(AssertionError, match="no text for"):
        work_id(changed(2, params={"alpha": object()}))
