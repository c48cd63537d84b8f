"""The facts about the pinned wheels that PyC relies on; an upgrade that breaks one fails here.

Each test is one fact. Facts that end the process when they hold are not tried.
"""

import io
import zipfile
from importlib.metadata import requires, version
from importlib.util import find_spec
from typing import Any, Optional

import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir as iree_ir
from iree.compiler import query_available_targets
from iree.compiler.api import Invocation, Output, Session, Source, ctypes_dl
from iree.compiler.passmanager import PassManager as IreePassManager
from torch_mlir import ir
from torch_mlir.dialects import ext

verified: list[int] = []


class Facts(ext.Dialect, name="facts"):
    """A dialect for this module alone."""


class BiasOp(Facts.Operation, name="bias"):
    """One operand, a second one if wanted; the verifier tells what it was shown."""

    x: ext.Operand[ir.RankedTensorType]
    bias: Optional[ext.Operand[ir.RankedTensorType]]  # noqa: UP045  (the bindings need this form)
    out: ext.Result[ir.RankedTensorType]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        verified.append(len(op.operation.operands))
        return True


@pytest.fixture
def context():
    made = ir.Context()
    made.enable_multithreading(False)
    with made, ir.Location.unknown():
        Facts.load()
        verified.clear()
        yield made


def facts_function(operation: str) -> str:
    return f"""
      func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %0 = {operation}
        return %0 : tensor<2xf32>
      }}"""


def iree_parse(source: str | bytes) -> iree_ir.Module:
    with iree_ir.Context():
        return iree_ir.Module.parse(source)


# The packages


def test_pins_are_installed():
    needed = [r.partition(";") for r in requires("pyc-mlir") or []]
    base = [r for r, _, extra in needed if "extra" not in extra or "compile" in extra]
    pinned = dict(r.strip().split("==") for r in base if "==" in r)
    assert pinned.keys() == {"iree-base-runtime", "iree-base-compiler", "torch-mlir"}
    assert {name: version(name) for name in pinned} == pinned


def test_iree_has_no_irdl():
    """Python-defined dialects work in the torch-mlir wheel only."""
    assert find_spec("torch_mlir.dialects.irdl") and not find_spec("iree.compiler.dialects.irdl")


# MLIR: dialects defined in Python


@pytest.mark.parametrize(
    "operation",
    [
        '"facts.bias"(%x) : (tensor<2xf32>) -> tensor<2xf32>',
        '"facts.bias"(%x, %x) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>',
    ],
)
def test_trailing_optional_operand_needs_no_segment_sizes(context, operation):
    module = ir.Module.parse(facts_function(operation))
    assert operation.partition(" :")[0].replace("%x", "%arg0") in str(module)


@pytest.mark.parametrize("count", [0, 3])
def test_verifier_runs_before_the_arity_check(context, count):
    operands = ", ".join(["%x"] * count)
    types = ", ".join(["tensor<2xf32>"] * count)
    with pytest.raises(ir.MLIRError, match=r"op expects at (least 1|most 2) operands"):
        ir.Module.parse(facts_function(f'"facts.bias"({operands}) : ({types}) -> tensor<2xf32>'))
    assert verified == [count]


def test_python_dialects_have_generic_syntax_only(context):
    with pytest.raises(ir.MLIRError) as error:
        ir.Module.parse(facts_function("facts.bias %x : tensor<2xf32>"))
    assert not error.value.error_diagnostics, "it fails without saying why"


def test_python_dialects_have_no_properties(context):
    source = '"facts.bias"(%x) <{a = 1 : i64}> : (tensor<2xf32>) -> tensor<2xf32>'
    with pytest.raises(ir.MLIRError, match="don't support properties"):
        ir.Module.parse(facts_function(source))


def test_diagnostics_are_located(context, tmp_path):
    path = tmp_path / "bad.mlir"
    path.write_text("func.func @f() {\n  return %nothing : f32\n}\n")
    with pytest.raises(ir.MLIRError) as error:
        ir.Module.parseFile(str(path))
    (diagnostic,) = error.value.error_diagnostics
    location = ir.FileLineColLoc(diagnostic.location)
    assert (location.filename, location.start_line, location.start_col) == (str(path), 2, 10)
    assert "undeclared SSA value" in diagnostic.message


def test_python_dialects_survive_bytecode(context):
    module = ir.Module.parse(facts_function('"facts.bias"(%x) : (tensor<2xf32>) -> tensor<2xf32>'))
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    assert str(ir.Module.parse(buffer.getvalue())) == str(module)


# Hand-over to IREE


@pytest.mark.parametrize("name", ["add", "exp"])
def test_iree_lacks_named_elementwise_ops(context, name):
    """MLIR's current linalg has them; PyC emits linalg.generic."""
    operands = "%x, %x : tensor<2xf32>, tensor<2xf32>" if name == "add" else "%x : tensor<2xf32>"
    operation = f"linalg.{name} ins({operands}) outs(%x : tensor<2xf32>) -> tensor<2xf32>"
    assert ir.Module.parse(facts_function(operation))
    with pytest.raises(iree_ir.MLIRError):
        iree_parse(facts_function(operation))


def test_named_locations_and_discardable_attributes_reach_iree():
    module = iree_parse(
        """
        module attributes {pyc.note = {a = [1, 2]}} {
          func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {
            %0 = tensor.empty() : tensor<2xf32>
            %1 = linalg.copy {pyc.id = "a"} ins(%x : tensor<2xf32>) outs(%0 : tensor<2xf32>)
                 -> tensor<2xf32> loc("pyc:a")
            return %1 : tensor<2xf32>
          }
        }"""
    )
    text = module.operation.get_asm(enable_debug_info=True)
    assert 'pyc.id = "a"' in text and 'loc("pyc:a")' in text and "pyc.note = {a = [1, 2]}" in text


# IREE's compiler


@pytest.mark.parametrize(
    "function",
    [
        "SetCompileFromPhase",
        "SetCompileToPhase",
        "SetDumpCompilationPhasesTo",
        "EnableCallbackDiagnostics",
        "RunPassPipeline",
    ],
)
def test_the_library_exports_what_its_python_package_lacks(function):
    assert ctypes_dl._dylib[f"ireeCompilerInvocation{function}"]


def test_iree_compiles_for_our_targets():
    assert {"llvm-cpu", "cuda", "vulkan-spirv"} <= set(query_available_targets())


@pytest.mark.parametrize(
    "name",
    [
        "iree-util-verify-initialization-order",
        "iree-stream-tensor-transformation-pipeline",
        "iree-stream-async-transformation-pipeline",
        "iree-stream-schedule-allocation",
        "iree-stream-cmd-transformation-pipeline",
        "iree-stream-optimization-pipeline",
        "iree-stream-cleanup-pipeline",
    ],
)
def test_the_stream_phases_are_passes(name):
    """The memory planner works between them."""
    with iree_ir.Context():
        assert IreePassManager.parse(f"builtin.module({name})")
        with pytest.raises(ValueError, match="does not refer to a registered pass"):
            IreePassManager.parse(f"builtin.module({name}-not)")


# IREE's artifacts and runtime

PROGRAM = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %zero = arith.constant 0 : index
  %half = arith.constant 0.5 : f32
  %n = tensor.dim %x, %zero : tensor<?xf32>
  %empty = tensor.empty(%n) : tensor<?xf32>
  %out = linalg.generic {
    indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
  } ins(%x : tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %half : f32
    linalg.yield %p : f32
  } -> tensor<?xf32>
  return %out : tensor<?xf32>
}
"""


def compile_program(source: bytes) -> bytes:
    session, output = Session(), Output.open_membuffer()
    session.set_flags("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host")
    invocation = Invocation(session)
    assert invocation.parse_source(Source.wrap_buffer(session, source))
    assert invocation.execute()
    invocation.output_vm_bytecode(output)
    return bytes(output.map_memory())


def call(vmfb: bytes, *arguments: np.ndarray) -> np.ndarray:
    config = rt.Config("local-sync")
    module = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, vmfb), config)
    return np.array(module.main(*arguments).to_host())


@pytest.fixture(scope="module")
def vmfb() -> bytes:
    return compile_program(PROGRAM.encode() + b"\0")


def test_dense_resources_pass_to_iree_as_bytecode(context):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = ir.RankedTensorType.get((2, 3), ir.F32Type.get())
    module = ir.Module.parse(
        "func.func @main() -> tensor<2x3xf32> {"
        "  %0 = arith.constant dense<0.0> : tensor<2x3xf32>  return %0 : tensor<2x3xf32> }"
    )
    constant = module.body.operations[0].body.blocks[0].operations[0]
    constant.attributes["value"] = ir.DenseResourceElementsAttr.get_from_buffer(
        values.data, "weights", tensor
    )
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    np.testing.assert_array_equal(call(compile_program(buffer.getvalue())), values)


def test_a_vmfb_is_a_zip_that_takes_more_entries(vmfb):
    file = io.BytesIO(vmfb)
    with zipfile.ZipFile(file, "a") as archive:
        assert archive.namelist()
        archive.writestr("pyc/manifest.json", "{}")
    extended = file.getvalue()
    assert zipfile.ZipFile(io.BytesIO(extended)).read("pyc/manifest.json") == b"{}"
    np.testing.assert_array_equal(call(extended, np.full(2, 4, np.float32)), [2, 2])


def test_denormals_are_flushed_to_zero(vmfb):
    tiny = np.finfo(np.float32).tiny
    assert call(vmfb, np.array([tiny], np.float32))[0] == 0 != tiny * np.float32(0.5)


def test_dynamic_shapes_run(vmfb):
    for size in (1, 7):
        np.testing.assert_array_equal(call(vmfb, np.ones(size, np.float32)), np.full(size, 0.5))


def test_wrong_dtype_and_rank_are_clean_errors(vmfb):
    for argument in (np.ones(2, np.int32), np.ones((2, 2), np.float32)):
        with pytest.raises((ValueError, RuntimeError)):
            call(vmfb, argument)


def test_a_fresh_driver_counts_memory_from_zero():
    driver = rt._binding.create_hal_driver("local-sync")  # pyright: ignore (missing in its stub)
    device = driver.create_default_device()
    assert device.allocator.statistics["device_bytes_peak"] == 0
