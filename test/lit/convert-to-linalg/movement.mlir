// Views and copies; empty parts are never inserted or extracted.
// RUN: pyc-opt %s --convert-pyc-to-linalg | filecheck %s

// CHECK-LABEL: func.func @reshapes
// CHECK: tensor.collapse_shape %arg0 {{\[}}[0], [1, 2]] : tensor<?x3x4xf32> into tensor<?x12xf32>
// CHECK-NOT: tensor.expand_shape
// CHECK-NOT: cf.assert
func.func @reshapes(%x: tensor<?x3x4xf32>) -> tensor<?x12xf32> {
  %0 = "pyc.reshape"(%x) {shape = array<i64: -1, 4>} : (tensor<?x3x4xf32>) -> tensor<?x4xf32>
  %1 = "pyc.reshape"(%0) {shape = array<i64: -1, 12>} : (tensor<?x4xf32>) -> tensor<?x12xf32>
  return %1 : tensor<?x12xf32>
}

// Sizes of another value are compared where they are not known to agree; a view all the same.
// CHECK-LABEL: func.func @apart
// CHECK: %[[B:.*]] = tensor.dim %arg1
// CHECK: %[[L:.*]] = tensor.dim %arg1
// CHECK: cf.assert %{{.*}}, "DIMENSION_MISMATCH: sizes of a reshape must agree"
// CHECK: %[[X:.*]] = tensor.expand_shape %{{.*}} output_shape [%[[B]], %[[L]], 8]
// CHECK-NEXT: return %[[X]]
func.func @apart(%x: tensor<?x8xf32>, %y: tensor<?x?xi64>) -> tensor<?x?x8xf32> {
  %0 = "pyc.reshape"(%x, %y) {shape = array<i64: -4, -5, 8>} : (tensor<?x8xf32>, tensor<?x?xi64>) -> tensor<?x?x8xf32>
  return %0 : tensor<?x?x8xf32>
}

// CHECK-LABEL: func.func @joined
// CHECK: tensor.insert_slice %arg0 into %{{.*}}[0, 0] [2, 3] [1, 1]
// CHECK: tensor.insert_slice %arg1 into %{{.*}}[0, 3] [2, 4] [1, 1]
func.func @joined(%x: tensor<2x3xf32>, %y: tensor<2x4xf32>) -> tensor<2x7xf32> {
  %0 = "pyc.concat"(%x, %y) {axis = 1 : i64} : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>
  return %0 : tensor<2x7xf32>
}

// A tree of concatenations in a group: each part goes to its place at once.
// CHECK-LABEL: func.func @joined_tree
// CHECK: %[[E:.*]] = tensor.empty() : tensor<2x9xf32>
// CHECK: %[[A:.*]] = tensor.insert_slice %arg0 into %[[E]][0, 0] [2, 3] [1, 1]
// CHECK: %[[B:.*]] = tensor.insert_slice %arg1 into %[[A]][0, 3] [2, 4] [1, 1]
// CHECK: tensor.insert_slice %arg2 into %[[B]][0, 7] [2, 2] [1, 1]
// CHECK-NOT: tensor.insert_slice
// CHECK: return
func.func @joined_tree(%x: tensor<2x3xf32>, %y: tensor<2x4xf32>, %z: tensor<2x2xf32>) -> tensor<2x9xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.concat"(%x, %y) {axis = 1 : i64} : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>
    %2 = "pyc.concat"(%1, %z) {axis = 1 : i64} : (tensor<2x7xf32>, tensor<2x2xf32>) -> tensor<2x9xf32>
    "pyc.yield"(%2) : (tensor<2x9xf32>) -> ()
  }) {kind = "concat"} : () -> tensor<2x9xf32>
  return %0 : tensor<2x9xf32>
}

// CHECK-LABEL: func.func @nothing_joined
// CHECK-COUNT-1: tensor.insert_slice
// CHECK-NOT: tensor.insert_slice
// CHECK: return
func.func @nothing_joined(%x: tensor<2x3xf32>, %y: tensor<2x0xf32>) -> tensor<2x3xf32> {
  %0 = "pyc.concat"(%x, %y) {axis = 1 : i64} : (tensor<2x3xf32>, tensor<2x0xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @sliced
// CHECK: tensor.extract_slice %arg0[1] [4] [2] : tensor<9xf32> to tensor<4xf32>
func.func @sliced(%x: tensor<9xf32>) -> tensor<4xf32> {
  %0 = "pyc.slice"(%x) {starts = array<i64: 1>, stops = array<i64: 9>, steps = array<i64: 2>} : (tensor<9xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @nothing_sliced
// CHECK-NOT: tensor.extract_slice
// CHECK: tensor.empty() : tensor<0xf32>
func.func @nothing_sliced(%x: tensor<9xf32>) -> tensor<0xf32> {
  %0 = "pyc.slice"(%x) {starts = array<i64: 9>, stops = array<i64: 20>, steps = array<i64: 1>} : (tensor<9xf32>) -> tensor<0xf32>
  return %0 : tensor<0xf32>
}

// Indices count from the end and are clamped.
// CHECK-LABEL: func.func @taken
// CHECK: arith.maxsi
// CHECK: arith.minsi
// CHECK: tensor.extract %arg0
func.func @taken(%x: tensor<9x4xf32>, %i: tensor<5xi32>) -> tensor<5x4xf32> {
  %0 = "pyc.gather"(%x, %i) : (tensor<9x4xf32>, tensor<5xi32>) -> tensor<5x4xf32>
  return %0 : tensor<5x4xf32>
}
