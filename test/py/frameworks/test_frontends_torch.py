"""The PyTorch front end against torch: exports, names, dynamic sizes, refusals, mutations."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pyc_mlir  # noqa: E402
import pyc_mlir.torch as pyc_torch  # noqa: E402
from pyc_mlir import PycError, ReasonCode, TensorSpec  # noqa: E402
from pyc_mlir.artifact.import_report import UnsupportedModel  # noqa: E402
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret  # noqa: E402
from pyc_mlir.frontends.signatures import signature_of  # noqa: E402
from pyc_mlir.frontends.torch.export import from_torch  # noqa: E402
from pyc_mlir.frontends.torch.importer import import_torch  # noqa: E402

F = torch.nn.functional


class Encoder(torch.nn.Module):
    """A layer with attention and a dict of results."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.project = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x, mask=None):
        b, s, w = x.shape
        q, k, v = self.project(x).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        hidden = self.norm(x + self.out(mixed.transpose(1, 2).reshape(b, s, w)))
        return {"hidden": hidden, "pooled": hidden.mean(dim=1)}


class Indexed(torch.nn.Module):
    """Every way to take or write elements at indices that are an argument."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(30, 4)

    def forward(self, ids, rows, x):
        taken = (
            self.words(ids).sum() + x.index_select(1, rows).sum() + x.gather(0, rows[None]).sum()
        )
        written = x.index_put((rows,), x[0]) + x.scatter_add(1, rows[None], x)
        return taken + x[:, ids].sum() + written + x[rows + 1].sum()


def test_indices_in_arguments_have_ranges():
    given = torch.tensor([2, 3]), torch.tensor([1, 0]), torch.randn(5, 4)
    module = Indexed().eval()
    program = pyc_mlir.compile(torch.export.export(module, given), cache=False)
    found = {(r.input, r.size, r.negative) for r in program.signature.indices}
    assert found == {
        (0, 30, False), (0, 4, True), (1, 4, False), (1, 5, False), (1, 5, True)
    }  # fmt: skip
    assert program.stats().imported.clamped == 1
    torch.testing.assert_close(torch.from_dlpack(program(*given)), module(*given))
    for ids, rows in ((30, 1), (-1, 1), (1, 4), (1, -1)):
        wrong = torch.tensor([0, ids]), torch.tensor([rows, 0]), given[2]
        with pytest.raises(IndexError if ids != 1 else RuntimeError):
            module(*wrong)
        with pytest.raises(PycError) as caught:
            program(*wrong)
        assert caught.value.code is ReasonCode.INDEX_OUT_OF_RANGE


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def evaluate(model, *tensors):
    got = interpret(import_torch(model), [t.numpy() for t in tensors])
    return got if isinstance(got, (list, tuple)) else [got]


def test_compile_takes_a_module_and_names_dimensions():
    model = Encoder().eval()
    program = pyc_mlir.compile(model, (TensorSpec("f32", "batch", "length", 16),), cache=False)
    assert [a.shape for a in program.signature.inputs] == [("batch", "length", 16)]
    assert [a.name for a in program.signature.outputs] == ["hidden", "pooled"]
    for batch, length in ((2, 5), (3, 1), (1, 9)):
        x = torch.randn(batch, length, 16)
        hidden, pooled = program(x)
        want = model(x)
        np.testing.assert_allclose(hidden, want["hidden"].detach(), atol=2e-6)
        np.testing.assert_allclose(pooled, want["pooled"].detach(), atol=2e-6)
    with pytest.raises(PycError) as caught:
        program(torch.randn(2, 5, 17))
    assert caught.value.code is ReasonCode.ARGUMENT_SHAPE


def test_composites_are_kept():
    model = pyc_torch.from_torch(Encoder().eval(), (torch.randn(2, 5, 16),))
    text = str(import_torch(model))
    assert text.count('"pyc.attention"') == 1
    assert text.count('"pyc.layernorm"') == 1


def test_locations_name_the_module_and_the_users_line():
    model = pyc_torch.from_torch(Encoder().eval(), (torch.randn(2, 5, 16),))
    text = import_torch(model).operation.get_asm(enable_debug_info=True)
    assert "project/" in text
    assert "test_frontends_torch.py" in text


def test_weights_are_not_copied():
    model = torch.nn.Linear(64, 64).eval()
    from pyc_mlir.frontends.torch.ops.handler import numpy_view

    array = numpy_view(model.weight)
    assert array.ctypes.data == model.weight.data_ptr()
    half = numpy_view(model.weight.to(torch.bfloat16))
    assert half.dtype.name == "bfloat16"


def test_a_trained_dropout_is_refused_with_its_remedy():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).train()
    with pytest.raises(UnsupportedModel, match=r"eval"):
        pyc_mlir.compile(model, (torch.randn(2, 4),), cache=False)


def test_all_missing_operators_are_listed_at_once():
    def function(x):
        return torch.digamma(x), torch.mode(x).values, x + 1

    with pytest.raises(UnsupportedModel) as caught:
        import_torch(pyc_torch.from_torch(function, (torch.eye(3),)))
    ops = [f.op for f in caught.value.findings]
    assert ops == ["aten.digamma.default", "aten.mode.default"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(x.shape[0] + 1),
        lambda x: torch.cat([x, x[:1]]),
        lambda x: x[::2].sum(1),
        lambda x: x.reshape(-1).view(-1, 4) * x.shape[0],
        lambda x: torch.ones(x.shape[0] * 2, 3),
        lambda x: x[1:] - x[:-1],
        lambda x: F.pad(x, (0, 0, 2, 1)),
        lambda x: torch.zeros(x.shape[0] // 2 + 3),
        lambda x: x.cumsum(0),
        lambda x: (x > 0).cumsum(0),
        lambda x: x[x.shape[0] // 2 :],
        lambda x: torch.ones(x.shape[0] % 3 + 1),
        lambda x: x[: torch.sym_min(x.shape[0], 6)],
        lambda x: x.topk(torch.sym_min(x.shape[0], 6), 0).values,
        lambda x: x.split([x.shape[0] // 3, x.shape[0] - x.shape[0] // 3])[1],
    ],
)
def test_expressions_of_dynamic_sizes(function):
    model = pyc_torch.from_torch(function, (TensorSpec("f32", "s", 4),))
    for size in (5, 2, 8):
        x = torch.randn(size, 4)
        (got,) = evaluate(model, x)
        np.testing.assert_allclose(got, function(x), atol=1e-6)


def _first(x, count):
    number = count.item()
    torch._check(number >= 0)
    torch._check(number <= x.shape[0])
    return x[:number] * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, count: torch.nonzero(x),
        lambda x, count: x[x > 0],
        lambda x, count: x[x[:, 0] > 0] * 2,
        lambda x, count: x[:, x.sum(0) > 0].sum(0),
        lambda x, count: torch.masked_select(x, x > 0).exp(),
        _first,
    ],
)
def test_sizes_that_depend_on_values(function):
    model = pyc_torch.from_torch(function, (TensorSpec("f32", "s", 4), torch.tensor(2)))
    for size in (5, 2, 8):
        x, count = torch.randn(size, 4), torch.tensor(size // 2)
        for values in (x, -x.abs()):
            (got,) = evaluate(model, values, count)
            np.testing.assert_allclose(got, function(values, count), atol=1e-6)


def test_rows_split_into_the_sizes_of_another_input_are_a_view():
    def function(x, ids):
        return x.view(ids.shape[0], ids.shape[1], 8).transpose(0, 1)

    dims = ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO})
    given = (torch.ones(6, 8), torch.ones(2, 3))
    model = pyc_torch.from_torch(function, given, dynamic_shapes=(dims,))
    assert "pyc.gather" not in str(import_torch(model))
    for batch, length in ((2, 3), (5, 2), (3, 7)):
        x, ids = torch.randn(batch * length, 8), torch.zeros(batch, length)
        (got,) = evaluate(model, x, ids)
        np.testing.assert_array_equal(got, function(x, ids))


class Counter(torch.nn.Module):
    """Writes a buffer and gives what it was."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


@pytest.mark.parametrize("function", [lambda x: x.view(5, 4), lambda x: torch.ones(5, 5) @ x])
def test_a_named_dimension_that_the_model_fixes_is_an_error(function):
    with pytest.raises(PycError, match="the model fixes") as caught:
        pyc_torch.from_torch(function, (TensorSpec("f32", "rows", 4),))
    assert caught.value.code is ReasonCode.UNTRACEABLE


@pytest.mark.filterwarnings("error::FutureWarning")
def test_written_buffers_are_state():
    model = pyc_torch.compile(Counter(), (torch.ones(3),), cache=False)
    assert [a.name for a in model.program.signature.inputs] == ["x", "total"]
    for step in (1, 2, 3):
        assert torch.equal(model(torch.ones(3)), torch.full((3,), 2.0 * step))
    assert np.array_equal(model.state["total"], np.full(3, 3.0))


def test_a_program_gives_the_modules_own_trees():
    module = Encoder().eval()
    model = pyc_torch.compile(module, (torch.randn(2, 5, 16),), cache=False)
    x = torch.randn(2, 5, 16)
    got, want = model(x), module(x)
    assert set(got) == {"hidden", "pooled"}
    torch.testing.assert_close(got["hidden"], want["hidden"], atol=2e-6, rtol=1e-5)


def test_compare_reports_each_result():
    report = pyc_torch.compare(Encoder().eval(), (torch.randn(2, 5, 16),), cache=False)
    assert [d.name for d in report.differences] == ["hidden", "pooled"]
    assert report.agrees(1e-5)
    assert "hidden: " in str(report)


def test_importing_pyc_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, pyc_mlir, pyc_mlir.torch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_archives_of_torch_are_not_read(tmp_path):
    program = torch.export.export(torch.nn.Linear(4, 4), (torch.randn(2, 4),))
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    with pytest.raises(PycError) as caught:
        pyc_mlir.compile(path, cache=False)
    assert caught.value.code is ReasonCode.BAD_MODEL


def test_dimensions_of_an_export_keep_their_names(tmp_path):
    batch, rows = torch.export.Dim("batch"), torch.export.Dim("rows", min=2, max=64)

    class Sums(torch.nn.Module):
        def forward(self, a, b, c):
            return a + b, c.sum(0)

    shapes = {"a": {0: batch}, "b": {0: batch}, "c": {0: rows, 1: torch.export.Dim.AUTO}}
    given = torch.ones(3, 2), torch.ones(3, 2), torch.ones(5, 7)
    exported = torch.export.export(Sums(), given, dynamic_shapes=shapes)
    module = import_torch(from_torch(exported))
    signature = signature_of(entry_function(module))
    a, b, c = (entry.shape for entry in signature.inputs)
    assert (a, b, c[0]) == (("batch", 2), ("batch", 2), "rows")
    assert c[1] not in ("batch", "rows"), "torch's own name of a dimension without one"
    assert signature.ranges["rows"] == (2, 64)
    torch.export.save(exported, tmp_path / "sums.pt2")
    stored = import_torch(from_torch(torch.export.load(tmp_path / "sums.pt2")))
    assert "batch" not in signature_of(entry_function(stored)).inputs[0].shape


def test_a_size_that_is_a_multiple_of_another_one_has_its_own_name():
    """And its bounds; a call whose sizes are not in that relation is refused."""
    size = torch.export.Dim("size", min=1, max=64)

    class Halves(torch.nn.Module):
        def forward(self, a, b):
            return a.view(2, -1) + b

    shapes = {"a": {0: 2 * size}, "b": {0: size}}
    given = torch.ones(8), torch.ones(4)
    model = from_torch(torch.export.export(Halves(), given, dynamic_shapes=shapes))
    module = import_torch(model)
    signature = signature_of(entry_function(module))
    name = "size"
    assert [a.shape for a in signature.inputs] == [("2*size",), ("size",)]
    assert signature.ranges == {name: (1, 64), f"2*{name}": (2, 128)}
    f32 = np.dtype(np.float32)
    for n in (4, 3, 7):
        assert signature.check([((2 * n,), f32), ((n,), f32)]) == {name: n, f"2*{name}": 2 * n}
        (got,) = evaluate(model, torch.ones(2 * n), torch.ones(n))
        np.testing.assert_array_equal(got, np.full((2, n), 2))
    with pytest.raises(PycError, match=r"expected 6 for the sizes .* got 8") as caught:
        signature.check([((8,), f32), ((3,), f32)])
    assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


def test_a_multiple_has_the_bounds_that_it_was_exported_with():
    """Not those of its symbol, which begin at 2 where no input has it as a size."""
    sizes = torch.export.Dim("size", min=1, max=7)
    model = torch.nn.Conv2d(1, 1, 3, padding=1)
    shapes = {0: torch.export.Dim("n", min=1, max=4), 2: 32 * sizes, 3: 32}
    exported = torch.export.export(model, (torch.ones(2, 1, 96, 32),), dynamic_shapes=(shapes,))
    module = import_torch(from_torch(exported))
    signature = signature_of(entry_function(module))
    assert signature.ranges == {"n": (1, 4), "32*size": (32, 224)}


def test_a_refusal_names_the_operator_that_the_user_called():
    """Not one of the primitives that torch's decompositions make of it."""
    with pytest.raises(UnsupportedModel) as caught:
        import_torch(from_torch(lambda x: torch.special.bessel_j0(x) + 1, (torch.ones(3),)))
    assert [b.op for b in caught.value.report.breaks] == ["aten.special_bessel_j0.default"]
