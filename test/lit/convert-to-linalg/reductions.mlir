// Reductions begin at the identity of their operation; softmax reads its row three times.
// RUN: pyc-opt %s --convert-pyc-to-linalg | filecheck %s

// CHECK-LABEL: func.func @maximum
// CHECK: %[[LOWEST:.*]] = arith.constant 0xFF800000 : f32
// CHECK: linalg.fill ins(%[[LOWEST]]
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]
// CHECK: arith.maximumf
// CHECK: tensor.expand_shape {{.*}} : tensor<3xf32> into tensor<3x1xf32>
func.func @maximum(%x: tensor<3x5xf32>) -> tensor<3x1xf32> {
  %0 = "pyc.reduce_max"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<3x5xf32>) -> tensor<3x1xf32>
  return %0 : tensor<3x1xf32>
}

// CHECK-LABEL: func.func @position
// CHECK: linalg.generic {{.*}} outs(%{{.*}}, %{{.*}} : tensor<3xf32>, tensor<3xi64>)
// CHECK: linalg.index 1
func.func @position(%x: tensor<3x5xf32>) -> tensor<3xi64> {
  %0 = "pyc.argmax"(%x) {axis = 1 : i64} : (tensor<3x5xf32>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}

// CHECK-LABEL: func.func @softmax
// CHECK: arith.maximumf
// CHECK: math.exp
// CHECK: arith.addf
// CHECK: arith.divf
// CHECK-NOT: cf.assert
// CHECK: return
func.func @softmax(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "pyc.softmax"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// What is summed is read from memory also where it repeats one value.
// CHECK-LABEL: func.func @sum_of_a_constant
// CHECK: %[[TWO:.*]] = arith.constant dense<2.000000e+00> : tensor<f32>
// CHECK: %[[READ:.*]] = linalg.generic {{.*}} ins(%[[TWO]] : tensor<f32>)
// CHECK: linalg.generic {{.*}} ins(%[[READ]] : tensor<?xf32>)
func.func @sum_of_a_constant(%x: tensor<?xf32>) -> tensor<f32> {
  %0 = "pyc.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "pyc.broadcast_to"(%0, %x) {shape = array<i64: -1>} : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %2 = "pyc.reduce_sum"(%1) {axes = array<i64: 0>} : (tensor<?xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}
