// Sizes that nothing tells stay dynamic, and what is declared better than inferred stays.
// RUN: pyc-opt %s --pyc-infer-shapes | filecheck %s

// CHECK-LABEL: func.func @unknown(%arg0: tensor<?x4xf32>) -> tensor<?xf32>
// CHECK: "pyc.slice"(%{{.*}}) {{.*}} : (tensor<?x4xf32>) -> tensor<?x2xf32>
func.func @unknown(%x: tensor<?x4xf32>) -> tensor<?xf32> {
  %0 = "pyc.slice"(%x) {starts = array<i64: 1, 0>, stops = array<i64: 9, 2>, steps = array<i64: 1, 1>} : (tensor<?x4xf32>) -> tensor<?x?xf32>
  %1 = "pyc.reduce_sum"(%0) {axes = array<i64: 1>} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}

// CHECK-LABEL: func.func @declared(%arg0: tensor<?xf32>) -> tensor<4xf32>
// CHECK: "pyc.neg"(%arg0) : (tensor<?xf32>) -> tensor<4xf32>
func.func @declared(%x: tensor<?xf32>) -> tensor<4xf32> {
  %0 = "pyc.neg"(%x) : (tensor<?xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
