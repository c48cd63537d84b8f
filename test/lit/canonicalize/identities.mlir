// Identities go in every position in which they hold for all inputs.
// RUN: pyc-opt %s --pyc-canonicalize | filecheck %s

// CHECK-LABEL: func.func @neutral
// CHECK-NEXT: return %arg0
func.func @neutral(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %one = "pyc.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %zero = "pyc.constant"() {value = dense<-0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "pyc.mul"(%one, %x) : (tensor<f32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %1 = "pyc.add"(%0, %zero) : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %2 = "pyc.neg"(%1) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %3 = "pyc.neg"(%2) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return %3 : tensor<?x4xf32>
}

// CHECK-LABEL: func.func @repeated
// CHECK: %[[ONCE:.*]] = "pyc.relu"(%arg0)
// CHECK-NEXT: return %[[ONCE]]
func.func @repeated(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "pyc.relu"(%x) : (tensor<4xi32>) -> tensor<4xi32>
  %1 = "pyc.relu"(%0) : (tensor<4xi32>) -> tensor<4xi32>
  %2 = "pyc.maximum"(%1, %1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %2 : tensor<4xi32>
}

// CHECK-LABEL: func.func @views
// CHECK: "pyc.transpose"(%arg0) {permutation = array<i64: 2, 0, 1>}
// CHECK-NOT: "pyc.transpose"
// CHECK: "pyc.reshape"(%{{.*}}) {shape = array<i64: 24>}
// CHECK-NOT: "pyc.reshape"
func.func @views(%x: tensor<2x3x4xf32>) -> tensor<24xf32> {
  %0 = "pyc.transpose"(%x) {permutation = array<i64: 0, 2, 1>} : (tensor<2x3x4xf32>) -> tensor<2x4x3xf32>
  %1 = "pyc.transpose"(%0) {permutation = array<i64: 1, 0, 2>} : (tensor<2x4x3xf32>) -> tensor<4x2x3xf32>
  %2 = "pyc.reshape"(%1) {shape = array<i64: 4, 6>} : (tensor<4x2x3xf32>) -> tensor<4x6xf32>
  %3 = "pyc.reshape"(%2) {shape = array<i64: 24>} : (tensor<4x6xf32>) -> tensor<24xf32>
  return %3 : tensor<24xf32>
}

// CHECK-LABEL: func.func @dead_and_common
// CHECK: %[[E:.*]] = "pyc.exp"(%arg0)
// CHECK-NEXT: "pyc.add"(%[[E]], %[[E]])
// CHECK-NEXT: return
func.func @dead_and_common(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "pyc.tanh"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "pyc.add"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}
