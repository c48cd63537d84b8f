// Ops of other dialects stay, on the converted values; a program without pyc ops is left alone.
// RUN: pyc-opt %s --convert-pyc-to-linalg | filecheck %s

// CHECK-LABEL: func.func @plain
// CHECK-NEXT: %[[S:.*]] = tensor.extract_slice %arg0[0] [2] [1]
// CHECK-NEXT: return %[[S]]
func.func @plain(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = tensor.extract_slice %x[0] [2] [1] : tensor<4xf32> to tensor<2xf32>
  return %0 : tensor<2xf32>
}

// CHECK-LABEL: func.func @between
// CHECK: %[[FIRST:.*]] = linalg.generic
// CHECK: %[[S:.*]] = tensor.extract_slice %[[FIRST]][0] [2] [1]
// CHECK: linalg.generic {{.*}} ins(%[[S]] : tensor<2xf32>)
func.func @between(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = "pyc.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = tensor.extract_slice %0[0] [2] [1] : tensor<4xf32> to tensor<2xf32>
  %2 = "pyc.exp"(%1) : (tensor<2xf32>) -> tensor<2xf32>
  return %2 : tensor<2xf32>
}
