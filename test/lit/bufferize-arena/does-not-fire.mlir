// A function that allocates nothing keeps its arguments; what is returned twice is copied.
// RUN: pyc-opt %s --convert-pyc-to-linalg --pyc-bufferize-arena | filecheck %s
// CHECK-NOT: memref.view

// CHECK-LABEL: func.func @one
// CHECK-SAME: (%arg0: memref<4xf32>, %arg1: memref<4xf32> {bufferize.result}) attributes {pyc.arena_bytes = 0
func.func @one(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @twice
// CHECK: linalg.generic
// CHECK: memref.copy %arg1, %arg2
func.func @twice(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %0 : tensor<4xf32>, tensor<4xf32>
}
