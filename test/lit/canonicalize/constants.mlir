// Ops on constants are evaluated, unless the result would be larger than allowed.
// RUN: pyc-opt %s --pyc-canonicalize | filecheck %s
// RUN: pyc-opt %s --pyc-canonicalize='max-fold-bytes=8' | filecheck %s --check-prefix SMALL

// CHECK-LABEL: func.func @folds
// CHECK-NEXT: "pyc.constant"() {value = dense<[5.000000e+00, 7.000000e+00]> : tensor<2xf32>}
// CHECK-NEXT: return
// SMALL-LABEL: func.func @folds
// SMALL-NEXT: "pyc.constant"() {value = dense<[5.000000e+00, 7.000000e+00]> : tensor<2xf32>}
// SMALL-NEXT: return
func.func @folds() -> tensor<2xf32> {
  %0 = "pyc.constant"() {value = dense<[2.0, 3.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %1 = "pyc.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %2 = "pyc.add"(%0, %0) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %3 = "pyc.add"(%2, %1) : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
  return %3 : tensor<2xf32>
}

// CHECK-LABEL: func.func @grows
// CHECK-NEXT: "pyc.constant"() {value = dense<1.000000e+00> : tensor<16xf32>}
// SMALL-LABEL: func.func @grows
// SMALL: "pyc.broadcast_to"
func.func @grows() -> tensor<16xf32> {
  %0 = "pyc.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "pyc.broadcast_to"(%0) {shape = array<i64: 16>} : (tensor<f32>) -> tensor<16xf32>
  return %1 : tensor<16xf32>
}

// CHECK-LABEL: func.func @sizes
// CHECK-NEXT: "pyc.constant"() {value = dense<12> : tensor<i64>}
// CHECK-NEXT: return
func.func @sizes(%x: tensor<3x?x4xf32>) -> tensor<i64> {
  %0 = "pyc.size"(%x) {axes = array<i64: 0, 2>} : (tensor<3x?x4xf32>) -> tensor<i64>
  return %0 : tensor<i64>
}
