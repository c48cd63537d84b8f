// Products and convolutions: named ops where they fit, generic ones elsewhere.
// RUN: pyc-opt %s --convert-pyc-to-linalg | filecheck %s

// CHECK-LABEL: func.func @matrix
// CHECK: %[[ZERO:.*]] = linalg.fill ins(%{{.*}} : f32) outs(%{{.*}} : tensor<2x4xf32>)
// CHECK: linalg.matmul ins(%arg0, %arg1 : tensor<2x3xf32>, tensor<3x4xf32>) outs(%[[ZERO]]
func.func @matrix(%x: tensor<2x3xf32>, %w: tensor<3x4xf32>) -> tensor<2x4xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// A batch times one matrix is one larger product.
// CHECK-LABEL: func.func @batch_by_matrix
// CHECK: tensor.collapse_shape %arg0 {{\[}}[0, 1], [2]] : tensor<?x5x3xf32> into tensor<?x3xf32>
// CHECK: linalg.matmul
// CHECK: tensor.expand_shape
func.func @batch_by_matrix(%x: tensor<?x5x3xf32>, %w: tensor<3x4xf32>) -> tensor<?x5x4xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<?x5x3xf32>, tensor<3x4xf32>) -> tensor<?x5x4xf32>
  return %0 : tensor<?x5x4xf32>
}

// The 16-bit floats are accumulated in f32 and rounded once.
// CHECK-LABEL: func.func @batches_of_halves
// CHECK: linalg.batch_matmul {{.*}} outs(%{{.*}} : tensor<6x2x4xf32>) -> tensor<6x2x4xf32>
// CHECK: arith.truncf
func.func @batches_of_halves(%x: tensor<6x2x3xf16>, %w: tensor<6x3x4xf16>) -> tensor<6x2x4xf16> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<6x2x3xf16>, tensor<6x3x4xf16>) -> tensor<6x2x4xf16>
  return %0 : tensor<6x2x4xf16>
}

// CHECK-LABEL: func.func @image
// CHECK: tensor.pad %arg0 low[0, 0, 1, 1] high[0, 0, 1, 1]
// CHECK: linalg.conv_2d_nchw_fchw {{.*}}strides = dense<2> : tensor<2xi64>
func.func @image(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x3x3xf32>) -> tensor<1x4x4x4xf32> {
  %0 = "pyc.conv2d"(%x, %w) {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x4x4xf32>
  return %0 : tensor<1x4x4x4xf32>
}

// Weights of one value give the window its size: they stay an operand.
// CHECK-LABEL: func.func @depthwise
// CHECK: linalg.generic {{.*}}"reduction", "reduction", "reduction"]}
// CHECK-SAME: ins(%{{.*}}, %{{.*}} : tensor<1x2x1x8x8xf32>, tensor<2x1x1x3x3xf32>)
func.func @depthwise(%x: tensor<1x2x8x8xf32>) -> tensor<1x2x6x6xf32> {
  %0 = "pyc.constant"() {value = dense<0.5> : tensor<2x1x3x3xf32>} : () -> tensor<2x1x3x3xf32>
  %1 = "pyc.conv2d"(%x, %0) {groups = 2 : i64} : (tensor<1x2x8x8xf32>, tensor<2x1x3x3xf32>) -> tensor<1x2x6x6xf32>
  return %1 : tensor<1x2x6x6xf32>
}
