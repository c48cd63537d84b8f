// Composite ops become primitive ones, whose places and types are those of the op.
// RUN: pyc-opt %s --pyc-decompose | filecheck %s
// RUN: pyc-opt %s --pyc-decompose='only=softmax' | filecheck %s --check-prefix ONLY

// CHECK-LABEL: func.func @softmax
// CHECK: %[[MAX:.*]] = "pyc.reduce_max"(%arg0) {axes = array<i64: -1>, keepdims = true}
// CHECK: %[[SHIFTED:.*]] = "pyc.sub"(%arg0, %[[MAX]])
// CHECK: %[[EXP:.*]] = "pyc.exp"(%[[SHIFTED]])
// CHECK: %[[SUM:.*]] = "pyc.reduce_sum"(%[[EXP]]) {axes = array<i64: -1>, keepdims = true}
// CHECK: "pyc.div"(%[[EXP]], %[[SUM]]) : (tensor<?x8xf32>, tensor<?x1xf32>) -> tensor<?x8xf32>
// ONLY-LABEL: func.func @softmax
// ONLY-NOT: "pyc.softmax"
func.func @softmax(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %0 = "pyc.softmax"(%x) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}

// silu is x * sigmoid(x), and sigmoid is composite too.
// CHECK-LABEL: func.func @nested
// CHECK-NOT: "pyc.sigmoid"
// CHECK: %[[S:.*]] = "pyc.div"
// CHECK: "pyc.mul"(%arg0, %[[S]])
// ONLY-LABEL: func.func @nested
// ONLY: "pyc.silu"
func.func @nested(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.silu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// The 16-bit floats are summed in f32.
// CHECK-LABEL: func.func @halves
// CHECK: "pyc.cast"(%arg0) {dtype = f32}
// CHECK: "pyc.reduce_sum"{{.*}} -> tensor<f32>
// CHECK: "pyc.cast"(%{{.*}}) {dtype = f16} : (tensor<f32>) -> tensor<f16>
func.func @halves(%x: tensor<9xf16>) -> tensor<f16> {
  %0 = "pyc.reduce_mean"(%x) {axes = array<i64: 0>} : (tensor<9xf16>) -> tensor<f16>
  return %0 : tensor<f16>
}

// CHECK-LABEL: func.func @in_a_group
// CHECK: "pyc.group"
// CHECK: "pyc.maximum"
// CHECK: "pyc.yield"
func.func @in_a_group(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    "pyc.yield"(%1) : (tensor<4xf32>) -> ()
  }) {kind = "elementwise"} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
