// No group: a result that is needed elsewhere, another shape, an op that moves data.
// RUN: pyc-opt %s --pyc-fuse | filecheck %s
// RUN: pyc-opt %s --pyc-fuse --pyc-fuse | filecheck %s
// CHECK-NOT: "pyc.group"

func.func @returned(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = "pyc.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "pyc.relu"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}

func.func @stretched(%x: tensor<8xf32>, %y: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "pyc.softmax"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "pyc.add"(%0, %y) : (tensor<8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

func.func @moved(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "pyc.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "pyc.relu"(%1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
