// Sizes that must agree and are not known become run-time checks; those that are known do not.
// RUN: pyc-opt %s --convert-pyc-to-linalg | filecheck %s

// CHECK-LABEL: func.func @unnamed
// CHECK: cf.assert %{{.*}}, "DIMENSION_MISMATCH: broadcast dimensions must agree"
func.func @unnamed(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "pyc.add"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// Named dimensions are checked once, at the entry.
// CHECK-LABEL: func.func @named
// CHECK-COUNT-1: cf.assert %{{.*}}, "DIMENSION_MISMATCH: dimension `n` must agree"
// CHECK-NOT: cf.assert
// CHECK: return
func.func @named(%x: tensor<?xf32> {pyc.dims = ["n"]}, %y: tensor<?xf32> {pyc.dims = ["n"]}) -> tensor<?xf32> {
  %0 = "pyc.add"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %1 = "pyc.mul"(%0, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}

// CHECK-LABEL: func.func @declared
// CHECK: cf.assert %{{.*}}, "DIMENSION_MISMATCH: pyc.neg: dimension 0 must agree"
// CHECK: tensor.cast %{{.*}} : tensor<?xf32> to tensor<4xf32>
func.func @declared(%x: tensor<?xf32>) -> tensor<4xf32> {
  %0 = "pyc.neg"(%x) : (tensor<?xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @reshaped
// CHECK: cf.assert %{{.*}}, "DIMENSION_MISMATCH: sizes of a reshape must agree"
func.func @reshaped(%x: tensor<?xf32>) -> tensor<?x4xf32> {
  %0 = "pyc.reshape"(%x) {shape = array<i64: -1, 4>} : (tensor<?xf32>) -> tensor<?x4xf32>
  return %0 : tensor<?x4xf32>
}

// CHECK-LABEL: func.func @from_nothing
// CHECK: arith.cmpi sgt
// CHECK: cf.assert %{{.*}}, "DIMENSION_MISMATCH: gather: size of the axis"
func.func @from_nothing(%x: tensor<?xf32>, %i: tensor<5xi64>) -> tensor<5xf32> {
  %0 = "pyc.gather"(%x, %i) : (tensor<?xf32>, tensor<5xi64>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// The same value, or sizes that follow from each other.
// CHECK-LABEL: func.func @known
// CHECK-NOT: cf.assert
// CHECK: return
func.func @known(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "pyc.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "pyc.matmul"(%x, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "pyc.transpose"(%1) {permutation = array<i64: 1, 0>} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "pyc.add"(%1, %2) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %3 : tensor<?x?xf32>
}
