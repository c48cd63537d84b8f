"""Names in programs: what is written is what is read back."""

import pytest

from pyc_mlir.dialects.names import (
    ids_in,
    is_op_id,
    kernel_family,
    kernel_symbol,
    op_name,
    place_of,
    source_in,
)

ID, OTHER = "conv2d.0123456789abcdef", "add.fedcba9876543210#1"


def test_ids_of_locations_and_diagnostics():
    plain = f'loc("{place_of(ID)}"("node"("model.onnx":3:1)))'
    fused = f'loc(fused["{place_of(ID)}", "{place_of(OTHER)}", "{place_of(ID)}"])'
    marked = f'loc("{place_of(ID)}"("{place_of(ID)}":1:1))'
    assert ids_in(plain) == ids_in(marked) == ids_in(f"{place_of(ID)}:1:1: error: no") == (ID,)
    assert ids_in(fused) == (ID, OTHER)
    assert ids_in('loc("model.py":3:1)') == ()
    assert source_in(plain) == '"node"("model.onnx":3:1)'
    assert source_in(marked) is source_in('loc("model.py":3:1)') is None


def test_names_of_ops():
    assert op_name(ID) == "conv2d"
    assert is_op_id(ID) and not is_op_id("0123456789abcdef")


@pytest.mark.parametrize("family", ["gemm", "batch_gemm", "full_reduce"])
def test_kernels_have_their_family_in_their_symbol(family):
    assert kernel_family(kernel_symbol(family, 12) + "__") == family
    assert kernel_family("main_dispatch_3_matmul_8x8") is None
