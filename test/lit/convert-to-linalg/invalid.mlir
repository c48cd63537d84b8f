// A pyc op that would be left is an error at its own place.
// RUN: not pyc-opt %s --convert-pyc-to-linalg --split-input-file 2>&1 | filecheck %s

// CHECK: invalid.mlir{{.*}}pyc.neg has no lowering to linalg here; pyc ops are lowered inside func.func only
module @inner {
  module @nested {
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "pyc.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
  }
}

// -----

// CHECK: invalid.mlir{{.*}}pyc.exp has no lowering to linalg here
func.func @blocks(%x: tensor<4xf32>) -> tensor<4xf32> {
  cf.br ^a
^a:
  %0 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
