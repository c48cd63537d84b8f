"""The public names: what they are, that importing the package is light, that `jit` compiles."""

import re
import subprocess
import sys
from typing import get_type_hints

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import PycError, Tensor, TensorSpec, nn
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.frontends.sources import is_text
from pyc_mlir.runtime.device import Device

HEAVY = ("torch_mlir", "iree", "onnx", "torch", "numpy")
COMPILERS = ("torch_mlir", "iree.compiler", "onnx", "torch")
X = np.array([[1.0, -2.0], [3.0, -4.0]], np.float32)


def loaded_after(code: str, names: tuple[str, ...]) -> list[str]:
    """Which packages of `names` a fresh interpreter has loaded after running `code`."""
    report = f"\nimport sys\nprint(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def test_importing_the_package_imports_nothing_heavy():
    code = "import pyc_mlir\nassert 'compile' in dir(pyc_mlir)\npyc_mlir.__version__"
    assert loaded_after(code, HEAVY) == []


def test_loading_and_running_needs_no_compiler(tmp_path):
    path = tmp_path / "double.vmfb"
    pyc_mlir.compile(lambda x: x * 2, [X], device=Device("local-sync")).save(path)
    code = f"""
import numpy as np, pyc_mlir
program = pyc_mlir.load({str(path)!r}, pyc_mlir.Device("local-sync"))
assert program(np.ones((2, 2), np.float32)).sum() == 8
assert isinstance(program, pyc_mlir.Program)
pyc_mlir.Contract, pyc_mlir.Target, pyc_mlir.Recipe, pyc_mlir.Array, pyc_mlir.PycError
"""
    assert loaded_after(code, COMPILERS) == []


def test_every_public_name_resolves_and_is_listed():
    for name in pyc_mlir.__all__:
        assert getattr(pyc_mlir, name) is not None
        assert name in dir(pyc_mlir)
    assert re.match(r"\d+\.\d+\.\d+", pyc_mlir.__version__)


def test_compile_stays_the_function_whatever_is_imported():
    code = "import pyc_mlir.api, pyc_mlir\nassert callable(pyc_mlir.compile)"
    loaded_after(code, ())


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        _ = pyc_mlir.complie  # type: ignore[attr-defined]


def test_annotations_are_specs():
    def model(x: Tensor["f32", "batch", 784]):  # noqa: F821
        return x

    assert get_type_hints(model, globals())["x"] == TensorSpec("f32", "batch", 784)
    assert pyc_mlir.spec(np.float32, ("batch", 784)) == TensorSpec("f32", "batch", 784)


def test_jit_compiles_once_for_a_named_dimension():
    @pyc_mlir.jit(device=Device("local-sync"))
    def model(x: Tensor["f32", "batch", 2]):  # noqa: F821
        return {"kept": nn.relu(x), "sum": x.sum()}

    for rows in (1, 2):
        out = model(X[:rows])
        np.testing.assert_array_equal(out["kept"], np.maximum(X[:rows], 0))
        np.testing.assert_allclose(out["sum"], X[:rows].sum())
    assert model.cache_info() == (1, 1, 1)


def test_jit_without_options_and_with_unknown_ones():
    assert isinstance(pyc_mlir.jit(lambda x: x).cache_info(), tuple)
    with pytest.raises(TypeError, match="taget"):
        pyc_mlir.jit(taget="cpu")  # type: ignore[call-overload]


def test_compiling_a_module_leaves_it_as_it_was():
    module = pyc_mlir.trace(lambda x: np.exp(x) + 1, pyc_mlir.spec("f32", ("n",)))
    before = str(module)
    program = pyc_mlir.compile(module, device=Device("local-sync"))
    assert str(module) == before
    np.testing.assert_allclose(program(X[0]), pyc_mlir.interpret(module, [X[0]])[0], rtol=1e-6)


@pytest.mark.parametrize("start", ["module {", "  module @m {", "func.func @main"])
@pytest.mark.sampled(2)
def test_mlir_text_may_be_one_line(start):
    add = '(%a: tensor<2xf32>) -> tensor<2xf32> { %0 = "pyc.add"(%a, %a) : '
    add += "(tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32> return %0 : tensor<2xf32> }"
    text = start + add if start.startswith("func") else start + " func.func @main" + add + "}"
    program = pyc_mlir.compile(text, device=Device("local-sync"))
    np.testing.assert_array_equal(program(X[0]), X[0] * 2)


@pytest.mark.parametrize("path", ["module.mlir", "module/none.onnx", "none.mlir"])
def test_a_path_is_not_taken_for_text(path):
    with pytest.raises(PycError, match="No such file") as caught:
        pyc_mlir.compile(path)
    assert caught.value.code is ReasonCode.FILE_ACCESS


WITHOUT = """
import sys
for name in ("torch_mlir", "iree.compiler"):
    sys.modules[name] = None
"""


@pytest.mark.parametrize("name", ["compile", "jit", "trace", "nn"])
def test_names_that_need_a_missing_compiler_say_what_to_install(name):
    code = f"""{WITHOUT}
import pyc_mlir
try:
    pyc_mlir.{name}
except pyc_mlir.PycError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "`pip install '.[compile]'` in PyC's checkout [MISSING_DEPENDENCY]" in done.stdout, (
        done.stderr
    )


@pytest.mark.parametrize(
    ("tool", "argv"),
    [
        ("pyc_compile", "x.mlir -o x.vmfb"),
        ("pyc_opt", "--cse"),
        ("pyc_bench", "compile --quick"),
    ],
)
def test_tools_that_need_a_missing_compiler_say_what_to_install(tool, argv):
    code = f"{WITHOUT}\nfrom pyc_mlir.tools.{tool} import main\nsys.exit(main({argv.split()!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, done.stderr
    assert "[MISSING_DEPENDENCY]" in done.stderr and "'.[compile]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("folder", ["two\nlines", "br{aces", '"quoted'])
def test_a_path_of_any_letters_is_a_path(folder, tmp_path):
    text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    path = tmp_path / folder / "m\n.mlir"
    path.parent.mkdir()
    path.write_text(text)
    assert pyc_mlir.compile(str(path), device=Device("local-sync")).signature.inputs
    path.unlink()
    with pytest.raises(PycError) as caught:
        pyc_mlir.compile(str(tmp_path / "none\n.mlir"))
    assert caught.value.code is ReasonCode.FILE_ACCESS
    assert is_text("// a comment\n") and is_text(text) and is_text(f"{text}\n")
