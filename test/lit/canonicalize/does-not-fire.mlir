// Near misses of the identities: signed zeros, NaN, integers, sizes that something else knows.
// RUN: pyc-opt %s --pyc-canonicalize | filecheck %s

// CHECK-LABEL: func.func @positive_zero
// CHECK: "pyc.add"
func.func @positive_zero(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "pyc.add"(%x, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// CHECK-LABEL: func.func @zero_times_nan
// CHECK: "pyc.mul"
func.func @zero_times_nan(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %1 = "pyc.mul"(%x, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// CHECK-LABEL: func.func @difference_of_nan
// CHECK: "pyc.sub"
func.func @difference_of_nan(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.sub"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @narrowing
// CHECK-COUNT-2: "pyc.cast"
func.func @narrowing(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.cast"(%x) {dtype = i32} : (tensor<4xf32>) -> tensor<4xi32>
  %1 = "pyc.cast"(%0) {dtype = f32} : (tensor<4xi32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// The constant says that the dynamic size is 3, which the program has to check.
// CHECK-LABEL: func.func @known_elsewhere
// CHECK: "pyc.mul"
func.func @known_elsewhere(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "pyc.constant"() {value = dense<1.0> : tensor<3xf32>} : () -> tensor<3xf32>
  %1 = "pyc.mul"(%x, %0) : (tensor<?xf32>, tensor<3xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}

// CHECK-LABEL: func.func @unknown_constant
// CHECK: "pyc.neg"
func.func @unknown_constant() -> tensor<?xf32> {
  %0 = "pyc.constant"() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<?xf32>
  %1 = "pyc.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}
