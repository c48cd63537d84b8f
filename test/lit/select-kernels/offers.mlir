// RUN: pyc-opt %s --pyc-fuse '--pyc-select-kernels=target=cpu-avx512' | filecheck %s

// A product with constant weights takes its bias and activation along; a norm is a kernel alone.
// CHECK-LABEL: func.func @block
// CHECK: "pyc.layernorm"
// CHECK-SAME: covers = 1 : i64, family = "rows", feeds = ["0|1", "1|", "2|"]
// CHECK-SAME: Rows(operation='layernorm', rows=128, columns=96
// CHECK: "pyc.group"
// CHECK: kind = "contraction"
// CHECK-SAME: covers = 3 : i64, family = "gemm", feeds = ["0|1", "1|1", "2|"]
// CHECK-SAME: Gemm(rows=128, columns=64, depth=96
func.func @block(%x: tensor<128x96xf32>, %s: tensor<96xf32>, %b: tensor<96xf32>) -> tensor<128x64xf32> {
  %w = "pyc.constant"() {value = dense<0.5> : tensor<96x64xf32>} : () -> tensor<96x64xf32>
  %c = "pyc.constant"() {value = dense<0.25> : tensor<64xf32>} : () -> tensor<64xf32>
  %n = "pyc.layernorm"(%x, %s, %b) {axis = -1 : i64, epsilon = 1.0e-5 : f64} : (tensor<128x96xf32>, tensor<96xf32>, tensor<96xf32>) -> tensor<128x96xf32>
  %m = "pyc.matmul"(%n, %w) : (tensor<128x96xf32>, tensor<96x64xf32>) -> tensor<128x64xf32>
  %a = "pyc.add"(%m, %c) : (tensor<128x64xf32>, tensor<64xf32>) -> tensor<128x64xf32>
  %g = "pyc.gelu"(%a) {approximate = "none"} : (tensor<128x64xf32>) -> tensor<128x64xf32>
  return %g : tensor<128x64xf32>
}

// Rows may be dynamic, and dimensions before the last one are rows too.
// CHECK-LABEL: func.func @dynamic
// CHECK: feeds = ["0|2"]
// CHECK-SAME: Rows(operation='softmax', rows='m', columns=40
func.func @dynamic(%x: tensor<?x3x40xf32>) -> tensor<?x3x40xf32> {
  %y = "pyc.softmax"(%x) {axis = 2 : i64} : (tensor<?x3x40xf32>) -> tensor<?x3x40xf32>
  return %y : tensor<?x3x40xf32>
}

// So may their length.
// CHECK-LABEL: func.func @length
// CHECK: Rows(operation='softmax', rows=4, columns='c'
func.func @length(%x: tensor<4x?xf32>) -> tensor<4x?xf32> {
  %y = "pyc.softmax"(%x) {axis = -1 : i64} : (tensor<4x?xf32>) -> tensor<4x?xf32>
  return %y : tensor<4x?xf32>
}

// Nothing is offered for other types.
// CHECK-LABEL: func.func @none
// CHECK-NOT: pyc.kernel
func.func @none(%x: tensor<4x8xf64>) -> tensor<4x8xf64> {
  %y = "pyc.softmax"(%x) {axis = -1 : i64} : (tensor<4x8xf64>) -> tensor<4x8xf64>
  return %y : tensor<4x8xf64>
}
