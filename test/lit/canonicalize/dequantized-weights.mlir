// The dequantization of weights is folded whatever its size, where products alone read it.
// RUN: pyc-opt %s --pyc-canonicalize='max-fold-bytes=8' | filecheck %s

// CHECK-LABEL: func.func @weights
// CHECK-NOT: pyc.cast
// CHECK: "pyc.constant"() {value = dense<{{.*}}-1.000000e+00{{.*}}> : tensor<2x2xf32>}
// CHECK-NEXT: "pyc.matmul"
func.func @weights(%x: tensor<3x2xf32>) -> tensor<3x2xf32> {
  %q = "pyc.constant"() {value = dense<[[1, -2], [3, 4]]> : tensor<2x2xi8>} : () -> tensor<2x2xi8>
  %s = "pyc.constant"() {value = dense<[1.0, 0.5]> : tensor<2xf32>} : () -> tensor<2xf32>
  %0 = "pyc.cast"(%q) {dtype = i32} : (tensor<2x2xi8>) -> tensor<2x2xi32>
  %1 = "pyc.cast"(%0) {dtype = f32} : (tensor<2x2xi32>) -> tensor<2x2xf32>
  %2 = "pyc.mul"(%1, %s) : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
  %3 = "pyc.matmul"(%x, %2) : (tensor<3x2xf32>, tensor<2x2xf32>) -> tensor<3x2xf32>
  return %3 : tensor<3x2xf32>
}

// Another op reads the weights too.
// CHECK-LABEL: func.func @also_added
// CHECK: "pyc.cast"
func.func @also_added(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %q = "pyc.constant"() {value = dense<[[1, -2], [3, 4]]> : tensor<2x2xi8>} : () -> tensor<2x2xi8>
  %0 = "pyc.cast"(%q) {dtype = f32} : (tensor<2x2xi8>) -> tensor<2x2xf32>
  %1 = "pyc.matmul"(%x, %0) : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %2 = "pyc.add"(%1, %0) : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  return %2 : tensor<2x2xf32>
}

// The left operand of a product is no weights.
// CHECK-LABEL: func.func @on_the_left
// CHECK: "pyc.cast"
func.func @on_the_left(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %q = "pyc.constant"() {value = dense<[[1, -2], [3, 4]]> : tensor<2x2xi8>} : () -> tensor<2x2xi8>
  %0 = "pyc.cast"(%q) {dtype = f32} : (tensor<2x2xi8>) -> tensor<2x2xf32>
  %1 = "pyc.matmul"(%0, %x) : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  return %1 : tensor<2x2xf32>
}
