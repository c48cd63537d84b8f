"""Islands: ONNX nodes that PyC refuses, lowered by torch-mlir in a process of its own."""

import json
from functools import cache

import numpy as np
import onnx
import onnx_cases as given
import pytest
from conftest import sample
from onnx import helper
from onnx.reference import ReferenceEvaluator

import pyc_mlir
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import to_bytes
from pyc_mlir.artifact.compile_log import read_compile_log
from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.compilation.options import make_options
from pyc_mlir.debug.replay import replay
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.frontends.onnx import islands as lowering
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.onnx.islands import TESTED, is_tested
from pyc_mlir.tools import pyc_explain

X = np.linspace(-2, 2, 2 * 3 * 9 * 8, dtype=np.float32).reshape(2, 3, 9, 8)


def model(op="AveragePool", rank=4, **attributes):
    """relu, then a node that PyC refuses and whose result has that rank, then exp."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node(op, ["r"], ["p"], name="pool", **attributes),
        helper.make_node("Exp", ["p"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", 1, ["n", 3, "h", "w"])
    y = helper.make_tensor_value_info("y", 1, [f"y{i}" for i in range(rank)])
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def pool():
    return model(kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2])


@cache
def refused_cases():
    """The node cases of the listed operators that PyC refuses with dynamic sizes, by operator."""
    found = {op: [] for op in TESTED}
    context = new_context()
    for case in given.cases():
        read = given.tensors(case)
        if isinstance(read, str) or len(read[0].graph.node) != 1:
            continue
        node = read[0].graph.node[0]
        if not is_tested(node.op_type, node):
            continue
        try:
            import_onnx(given.with_dynamic_sizes(read[0]), context=context)
        except UnsupportedModel:
            found[node.op_type].append(case)
    return found


@pytest.mark.parametrize("op", sorted(TESTED))
@pytest.mark.full
def test_the_cases_of_an_operator_of_the_list_are_right(op):
    """Those that PyC itself refuses; there are some of each operator."""
    cases = refused_cases()[op]
    assert cases
    for case in sample(cases, 2):
        model, inputs, wanted = given.tensors(case)
        assert not isinstance(model, str)
        program = pyc_mlir.compile(given.with_dynamic_sizes(model), cache=False, islands=True)
        assert [i.op for i in program.stats().imported.islands] == [op]
        out = program(*inputs)
        answers = out if isinstance(out, tuple) else (out,)
        for answer, expected in zip(answers, wanted, strict=True):
            assert given.close(np.asarray(answer), np.asarray(expected), case), case.name


@pytest.mark.parametrize("untrusted", [False, True])
@pytest.mark.full
def test_an_island_between_ops_of_pyc(untrusted):
    """Compiled here and in a worker; the report counts the break and travels as JSON."""
    program = pyc_mlir.compile(pool(), cache=False, islands=True, untrusted=untrusted)
    for x in (X, X[:1, :, :5, :7]):
        expected = np.asarray(next(iter(ReferenceEvaluator(pool()).run(None, {"x": x}))))
        np.testing.assert_allclose(program(x), expected, rtol=1e-6)
    report = program.stats().imported
    assert (report.total, report.foreign, len(report.islands)) == (3, 1, 1)
    assert report.score == pytest.approx(2 / 3)
    assert "1 graph break by islands (AveragePool 1)" in str(report)
    assert from_data(ImportReport, json.loads(json.dumps(to_data(report)))) == report


def test_without_the_option_the_refusal_names_it():
    with pytest.raises(UnsupportedModel) as caught:
        pyc_mlir.compile(pool(), cache=False)
    assert "`islands=True`" in caught.value.findings[0].why
    assert "auto_pad" in caught.value.findings[0].why


def test_what_is_not_in_the_list_is_refused_with_the_option_too():
    """3-D windows of torch-mlir's AveragePool with ceil_mode are wrong, and so is Det."""
    for node in (
        model("Det", rank=2),
        model(kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2], ceil_mode=1),
    ):
        with pytest.raises(UnsupportedModel) as caught:
            pyc_mlir.compile(node, cache=False, islands=True)
        assert "islands" not in caught.value.findings[0].why


def test_an_abort_of_the_process_is_an_error_with_a_code(monkeypatch):
    """torch-mlir aborts at this case of the onnx wheel."""
    case = next(c for c in given.cases() if c.name == "test_castlike_FLOAT_to_UINT4")
    with pytest.raises(PycError, match="SIGABRT") as caught:
        lowering.to_linalg(case.model.SerializeToString())
    assert caught.value.code is ReasonCode.NATIVE_CRASH

    def ended(_: bytes) -> str:
        raise caught.value

    monkeypatch.setattr("pyc_mlir.frontends.onnx.islands.to_linalg", ended)
    with pytest.raises(PycError, match="node pool") as whole:
        pyc_mlir.compile(pool(), cache=False, islands=True)
    assert whole.value.code is ReasonCode.NATIVE_CRASH


@pytest.mark.full
def test_what_torch_mlir_refuses_is_refused_with_its_reason():
    case = next(c for c in given.cases() if c.name == "test_unique_sorted_with_axis")
    with pytest.raises(PycError, match="torch-mlir does not lower it") as caught:
        lowering.to_linalg(case.model.SerializeToString())
    assert caught.value.code is ReasonCode.UNSUPPORTED_OP


def test_the_cache_tells_programs_with_islands_apart(tmp_path):
    path = tmp_path / "pool.onnx"
    onnx.save(pool(), path)
    for _ in range(2):
        program = pyc_mlir.compile(path, cache=tmp_path / "cache", islands=True)
        assert len(program.stats().imported.islands) == 1
    with pytest.raises(UnsupportedModel):
        pyc_mlir.compile(path, cache=tmp_path / "cache")


@pytest.mark.full
def test_a_replay_makes_the_same_bytes(tmp_path):
    """By the program, whose manifest says that islands were asked for."""
    path, made = tmp_path / "m.onnx", tmp_path / "m.vmfb"
    onnx.save(pool(), path)
    data = to_bytes(build(path, None, make_options(islands=True)))
    made.write_bytes(data)
    recorded = read_compile_log(made)
    assert recorded.reading == (True, "", ())
    assert to_bytes(replay(path, None, recorded)) == data


def test_explain_lists_islands(tmp_path, capfd):
    path = tmp_path / "pool.onnx"
    onnx.save(pool(), path)
    assert pyc_explain.main([str(path)]) != 0
    assert pyc_explain.main([str(path), "--islands"]) == 0
    out = capfd.readouterr().out
    assert "AveragePool: PyC has no rule for it" in out and "1 graph break by islands" in out
