// Options that are none, and groups that are not what a group has to be.
// RUN: not pyc-opt %s --pyc-fuse='max-ops=few' 2>&1 | filecheck %s --check-prefix OPTION
// RUN: not pyc-opt %s --split-input-file 2>&1 | filecheck %s

// OPTION: expected an integer
// CHECK: error: pyc.group: expected pyc.yield of tensor<4xf32>, got (tensor<4xf64>)
func.func @type(%x: tensor<4xf64>) -> tensor<4xf32> {
  %0 = "pyc.group"() ({
    "pyc.yield"(%x) : (tensor<4xf64>) -> ()
  }) {kind = "elementwise"} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK: error: pyc.group: expected no operands and no block arguments
func.func @operands(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.group"() ({
  ^bb0(%y: tensor<4xf32>):
    "pyc.yield"(%y) : (tensor<4xf32>) -> ()
  }) {kind = "elementwise"} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
