// A product of computed values takes the transposes that only it needs, and that of its result.
// RUN: pyc-opt %s --pyc-fuse | filecheck %s

// CHECK-LABEL: func.func @scores
// CHECK: "pyc.group"() ({
// CHECK: "pyc.transpose"
// CHECK: "pyc.matmul"
// CHECK: "pyc.mul"
// CHECK: pyc.fused = ["transpose", "matmul", "mul"]
func.func @scores(%q: tensor<2x8x4xf32>, %k: tensor<2x8x4xf32>, %s: tensor<f32>) -> tensor<2x8x8xf32> {
  %0 = "pyc.transpose"(%k) {permutation = array<i64: 0, 2, 1>} : (tensor<2x8x4xf32>) -> tensor<2x4x8xf32>
  %1 = "pyc.matmul"(%q, %0) : (tensor<2x8x4xf32>, tensor<2x4x8xf32>) -> tensor<2x8x8xf32>
  %2 = "pyc.mul"(%1, %s) : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<2x8x8xf32>
  return %2 : tensor<2x8x8xf32>
}

// CHECK-LABEL: func.func @heads
// CHECK: pyc.fused = ["transpose", "matmul", "transpose"]
func.func @heads(%p: tensor<2x8x8xf32>, %v: tensor<8x2x4xf32>) -> tensor<8x2x4xf32> {
  %0 = "pyc.transpose"(%v) {permutation = array<i64: 1, 0, 2>} : (tensor<8x2x4xf32>) -> tensor<2x8x4xf32>
  %1 = "pyc.matmul"(%p, %0) : (tensor<2x8x8xf32>, tensor<2x8x4xf32>) -> tensor<2x8x4xf32>
  %2 = "pyc.transpose"(%1) {permutation = array<i64: 1, 0, 2>} : (tensor<2x8x4xf32>) -> tensor<8x2x4xf32>
  return %2 : tensor<8x2x4xf32>
}

// Not one that is needed elsewhere, and none beside constant weights, which are laid out anyway.
// CHECK-LABEL: func.func @elsewhere
// CHECK-NOT: pyc.group
func.func @elsewhere(%q: tensor<8x4xf32>, %k: tensor<8x4xf32>) -> (tensor<8x8xf32>, tensor<4x8xf32>, tensor<4x6xf32>) {
  %0 = "pyc.transpose"(%k) {permutation = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %1 = "pyc.matmul"(%q, %0) : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %w = "pyc.constant"() {value = dense<0.5> : tensor<8x6xf32>} : () -> tensor<8x6xf32>
  %2 = "pyc.transpose"(%q) {permutation = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %3 = "pyc.matmul"(%2, %w) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return %1, %0, %3 : tensor<8x8xf32>, tensor<4x8xf32>, tensor<4x6xf32>
}
