// What is written out becomes one op; a log replays and may be told otherwise.
// RUN: pyc-opt %s --pyc-recognize --pyc-canonicalize --pyc-log=%t.log -o %t.first
// RUN: filecheck %s --input-file %t.first
// RUN: filecheck %s --input-file %t.log --check-prefix LOG
// RUN: pyc-opt %s --pyc-recognize --pyc-canonicalize --pyc-recipe=%t.log --pyc-log=%t.again -o %t.second
// RUN: diff %t.first %t.second
// RUN: diff %t.log %t.again
// RUN: sed 's/"chosen": "softmax"/"chosen": "keep"/' %t.log > %t.keep
// RUN: pyc-opt %s --pyc-recognize --pyc-recipe=%t.keep | filecheck %s --check-prefix KEEP

// LOG: "pass_name": "pyc-recognize", "op_id": "div.{{[0-9a-f]+}}"
// LOG-SAME: "chosen": "softmax"
// LOG-SAME: "reason": "the same operations"
// LOG-SAME: "reason": "5 ops as they are"
// LOG-SAME: "decided_by": "heuristic"
// LOG: "chosen": "layernorm"
// LOG-SAME: "reason": "rounds otherwise, errs no more"

// CHECK-LABEL: func.func @softmax
// CHECK-NEXT: %[[Y:.*]] = "pyc.softmax"(%arg0) : (tensor<?x8xf32>) -> tensor<?x8xf32>
// CHECK-NEXT: return %[[Y]]
// KEEP-LABEL: func.func @softmax
// KEEP: "pyc.exp"
func.func @softmax(%x: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %0 = "pyc.reduce_max"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<?x8xf32>) -> tensor<?x1xf32>
  %1 = "pyc.sub"(%x, %0) : (tensor<?x8xf32>, tensor<?x1xf32>) -> tensor<?x8xf32>
  %2 = "pyc.exp"(%1) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %3 = "pyc.reduce_sum"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<?x8xf32>) -> tensor<?x1xf32>
  %4 = "pyc.div"(%2, %3) : (tensor<?x8xf32>, tensor<?x1xf32>) -> tensor<?x8xf32>
  return %4 : tensor<?x8xf32>
}

// A variance in one pass.
// CHECK-LABEL: func.func @layernorm
// CHECK: "pyc.layernorm"(%arg0, %arg1, %arg2) : 
// CHECK-NEXT: return
func.func @layernorm(%x: tensor<4x8xf32>, %s: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %e = "pyc.constant"() {value = dense<1.0e-05> : tensor<f32>} : () -> tensor<f32>
  %0 = "pyc.reduce_mean"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %1 = "pyc.mul"(%x, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "pyc.reduce_mean"(%1) {axes = array<i64: 1>, keepdims = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %3 = "pyc.mul"(%0, %0) : (tensor<4x1xf32>, tensor<4x1xf32>) -> tensor<4x1xf32>
  %4 = "pyc.sub"(%2, %3) : (tensor<4x1xf32>, tensor<4x1xf32>) -> tensor<4x1xf32>
  %5 = "pyc.add"(%4, %e) : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %6 = "pyc.rsqrt"(%5) : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %7 = "pyc.sub"(%x, %0) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %8 = "pyc.mul"(%7, %6) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %9 = "pyc.mul"(%8, %s) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %10 = "pyc.add"(%9, %b) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  return %10 : tensor<4x8xf32>
}
