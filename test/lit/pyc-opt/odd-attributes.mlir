// The bindings cannot hand out an array of odd integers: a located error, wherever it stands.
// RUN: pyc-opt %s --split-input-file --verify-diagnostics --pyc-infer-shapes --pyc-fuse

func.func @ours(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{pyc.neg: expected attributes that MLIR's Python bindings read}}
  %0 = "pyc.neg"(%x) {odd = array<i24: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @others(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{arith.addf: expected attributes that MLIR's Python bindings read}}
  %0 = arith.addf %x, %x {odd = array<i24: 0>} : tensor<4xf32>
  return %0 : tensor<4xf32>
}
