// Nothing to place: the order stays, and only the function says so.
// RUN: pyc-opt %s --pyc-plan-memory | filecheck %s
// CHECK-NOT: pyc.offset

// CHECK-LABEL: func.func @one
// CHECK-SAME: pyc.arena_bytes = 0 : i64, pyc.lower_bound = 0 : i64
// CHECK-NEXT: "pyc.constant"
// CHECK-NEXT: "pyc.add"
// CHECK-NEXT: return
func.func @one(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.constant"() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %1 = "pyc.add"(%x, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Results belong to the caller.
// CHECK-LABEL: func.func @returned
// CHECK-NEXT: "pyc.exp"
// CHECK-NEXT: "pyc.neg"
// CHECK-NEXT: return
func.func @returned(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pyc.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
