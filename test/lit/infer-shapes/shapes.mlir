// The shapes given for main reach every op and the signature; other functions keep theirs.
// RUN: pyc-opt %s --pyc-infer-shapes='shapes=2x784,scalar' | filecheck %s
// RUN: pyc-opt %s --pyc-infer-shapes='shapes=2x?,scalar' | filecheck %s --check-prefix PART

// CHECK-LABEL: func.func @helper(%arg0: tensor<?xf32>) -> tensor<?xf32>
func.func @helper(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "pyc.neg"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// CHECK-LABEL: func.func @main(%arg0: tensor<2x784xf32>, %arg1: tensor<f32>) -> tensor<2xi64>
// CHECK: "pyc.group"
// CHECK: "pyc.softmax"(%{{.*}}) : (tensor<2x784xf32>) -> tensor<2x784xf32>
// CHECK: }) {kind = "row"} : () -> tensor<2x784xf32>
// CHECK: "pyc.argmax"(%{{.*}}) {axis = 1 : i64} : (tensor<2x784xf32>) -> tensor<2xi64>
// PART-LABEL: func.func @main(%arg0: tensor<2x?xf32>, %arg1: tensor<f32>) -> tensor<2xi64>
func.func @main(%x: tensor<?x?xf32>, %s: tensor<f32>) -> tensor<?xi64> {
  %0 = "pyc.mul"(%x, %s) : (tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  %1 = "pyc.group"() ({
    %3 = "pyc.softmax"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "pyc.yield"(%3) : (tensor<?x?xf32>) -> ()
  }) {kind = "row"} : () -> tensor<?x?xf32>
  %2 = "pyc.argmax"(%1) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?xi64>
  return %2 : tensor<?xi64>
}
