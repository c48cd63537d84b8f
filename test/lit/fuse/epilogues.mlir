// An anchor takes the elementwise ops behind it: bias, activation, residual add.
// RUN: pyc-opt %s --pyc-fuse | filecheck %s
// RUN: pyc-opt %s --pyc-fuse='max-ops=2' | filecheck %s --check-prefix TWO

// CHECK-LABEL: func.func @layer
// CHECK: %[[G:.*]] = "pyc.group"() ({
// CHECK-NEXT: "pyc.matmul"(%arg0, %arg1)
// CHECK-NEXT: "pyc.add"
// CHECK-NEXT: "pyc.relu"
// CHECK-NEXT: "pyc.add"(%{{.*}}, %arg0)
// CHECK-NEXT: "pyc.yield"
// CHECK: }) {kind = "contraction", pyc.fused = ["matmul", "add", "relu", "add"]}
// CHECK-NEXT: return %[[G]]
// TWO-LABEL: func.func @layer
// TWO: pyc.fused = ["matmul", "add"]
// TWO: {kind = "elementwise", pyc.fused = ["relu", "add"]}
func.func @layer(%x: tensor<?x8xf32>, %w: tensor<8x8xf32>, %b: tensor<8xf32>) -> tensor<?x8xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  %1 = "pyc.add"(%0, %b) : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %2 = "pyc.relu"(%1) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %3 = "pyc.add"(%2, %x) : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
  return %3 : tensor<?x8xf32>
}

// A diamond has one way in and one way out: it is fused whole.
// CHECK-LABEL: func.func @silu
// CHECK: pyc.fused = ["conv2d", "sigmoid", "mul"]
func.func @silu(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32> {
  %0 = "pyc.conv2d"(%x, %w) : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x6x6xf32>
  %1 = "pyc.sigmoid"(%0) : (tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  %2 = "pyc.mul"(%0, %1) : (tensor<1x4x6x6xf32>, tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
  return %2 : tensor<1x4x6x6xf32>
}

// CHECK-LABEL: func.func @cluster
// CHECK: {kind = "elementwise", pyc.fused = ["neg", "tanh", "mul"]}
func.func @cluster(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "pyc.neg"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "pyc.tanh"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "pyc.mul"(%0, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// A norm is kept whole.
// CHECK-LABEL: func.func @norm
// CHECK: "pyc.rmsnorm"
// CHECK: {kind = "row", pyc.fused = ["rmsnorm", "mul"]}
func.func @norm(%x: tensor<2x8xf32>, %s: tensor<8xf32>) -> tensor<2x8xf32> {
  %0 = "pyc.rmsnorm"(%x, %s) : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  %1 = "pyc.mul"(%0, %x) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}
