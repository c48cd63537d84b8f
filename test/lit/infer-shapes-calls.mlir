// What another op relies on keeps its type: operands of calls, results of called functions, branches.
// RUN: pyc-opt %s --pyc-infer-shapes | filecheck %s

// CHECK-LABEL: func.func @called
// CHECK: return %{{.*}} : tensor<?xf32>
func.func @called(%x: tensor<?xf32>) -> tensor<?xf32> {
  %0 = "pyc.neg"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// CHECK-LABEL: func.func @caller
// CHECK: "pyc.neg"(%{{.*}}) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: "pyc.relu"(%{{.*}}) : (tensor<4xf32>) -> tensor<?xf32>
// CHECK: call @called(%{{.*}}) : (tensor<?xf32>) -> tensor<?xf32>
func.func @caller(%x: tensor<4xf32>) -> tensor<?xf32> {
  %0 = "pyc.neg"(%x) : (tensor<4xf32>) -> tensor<?xf32>
  %1 = "pyc.relu"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = func.call @called(%1) : (tensor<?xf32>) -> tensor<?xf32>
  return %2 : tensor<?xf32>
}

// CHECK-LABEL: func.func @branches
// CHECK: "pyc.neg"(%{{.*}}) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: "pyc.relu"(%{{.*}}) : (tensor<4xf32>) -> tensor<?xf32>
func.func @branches(%x: tensor<4xf32>) -> tensor<?xf32> {
  cf.br ^a
^a:
  %0 = "pyc.neg"(%x) : (tensor<4xf32>) -> tensor<?xf32>
  %1 = "pyc.relu"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  cf.br ^b(%1 : tensor<?xf32>)
^b(%2: tensor<?xf32>):
  return %2 : tensor<?xf32>
}
