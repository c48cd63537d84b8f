"""The table of a program's guards: what each checks, its cost, how often it fired."""

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import Contract, Program, PycError, TensorSpec
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.pipelines.choices.log import write_log
from pyc_mlir.profile.guards import _equal, _smallest
from pyc_mlir.tools import pyc_explain

X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def artifact():
    """x + y for 1 to 8 rows."""
    specs = [TensorSpec("f32", "n", 3), TensorSpec("f32", "n", 3)]
    return pyc_mlir.compile(lambda x, y: x + y, specs, dims={"n": (1, 8)}).artifact


def test_each_guard_counts_what_it_refused(artifact):
    program = Program(artifact)
    before = {g.name: g for g in program.guards()}
    assert list(before) == ["seen", "arrays", "arguments", "sizes", "ranges", "results", "arena"]
    assert before["sizes"].checks == "n: x[0] = y[0]" and before["ranges"].checks == "n 1 to 8"
    assert not any(g.fired for g in before.values())
    assert all((g.seconds is None) == (g.name == "results") for g in before.values())
    program(X, X)
    refused = [(X,), (X, X.astype(np.int32)), (X, X[:, :2]), (X, X[:1]), (np.tile(X, (9, 1)),) * 2]
    for call in refused:
        with pytest.raises(PycError):
            program(*call)
    with pytest.raises(PycError):
        program(X, X, out=X[:1])
    fired = {g.name: g.fired for g in program.guards() if g.fired}
    assert fired == {"arguments": 4, "sizes": 1, "ranges": 1}
    assert sum(fired.values()) == len(refused) + 1


def test_a_program_without_inputs_sizes_or_arena():
    program = pyc_mlir.compile(lambda: np.zeros(3, np.float32), [])
    found = {g.name: g.checks for g in program.guards()}
    assert found["arguments"] == "no arguments" and not {"sizes", "ranges"} & set(found)


def test_products_of_sizes_are_named():
    f32 = np.dtype(np.float32)
    inputs = SignatureEntry("x", f32, ("d",)), SignatureEntry("y", f32, ("2*d",))
    signature = Signature(inputs, ())
    assert _equal(signature) == "2*d: y[0]"
    assert signature.check(_smallest(signature)) == {"d": 1, "2*d": 2}


def test_a_reference_is_a_guard():
    program = pyc_mlir.compile(
        lambda x: x + 1, [TensorSpec("f32", 3)], contract=Contract(max_error=1e-3)
    )
    assert "max_error=0.001" in {g.name: g.checks for g in program.guards()}["reference"]


def test_explain_prints_the_table_with_the_log_of_a_run(artifact, tmp_path, capsys):
    program = Program(artifact)
    program.save(tmp_path / "p.vmfb")
    with pytest.raises(PycError):
        program(X)
    write_log(program.log(), tmp_path / "run.jsonl")
    arguments = [str(tmp_path / "p.vmfb"), "--guards", "--log", str(tmp_path / "run.jsonl")]
    assert pyc_explain.main(arguments) == 0
    rows = {r.split("  ")[0]: r for r in capsys.readouterr().out.splitlines()}
    assert rows["guard"].endswith("fired") and rows["arguments"].endswith("1")
    assert "DIMENSION_OUT_OF_RANGE" in rows["ranges"] and rows["ranges"].endswith("0")
    assert pyc_explain.main([str(tmp_path / "p.vmfb"), "--guards"]) == 0
    assert "fired" in program.guards()._repr_html_()
