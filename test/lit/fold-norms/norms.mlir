// Scales of output channels go into the weights; a log replays and may be told otherwise.
// RUN: pyc-opt %s --pyc-fold-norms --pyc-log=%t.log -o %t.first
// RUN: filecheck %s --input-file %t.first
// RUN: filecheck %s --input-file %t.log --check-prefix LOG
// RUN: pyc-opt %s --pyc-fold-norms --pyc-recipe=%t.log --pyc-log=%t.again -o %t.second
// RUN: diff %t.first %t.second
// RUN: diff %t.log %t.again
// RUN: sed 's/"chosen": "fold"/"chosen": "keep"/' %t.log > %t.keep
// RUN: pyc-opt %s --pyc-fold-norms --pyc-recipe=%t.keep | filecheck %s --check-prefix KEEP

// What stands before the product is scaled with it.
// LOG: "pass_name": "pyc-fold-norms", "op_id": "conv2d.{{[0-9a-f]+}}"
// LOG-SAME: "chosen": "fold"
// LOG-SAME: "reason": "products are rounded before the sum"
// LOG-SAME: "reason": "add+mul+sub behind the convolution"
// LOG-SAME: "decided_by": "heuristic"
// CHECK-LABEL: func.func @norm
// CHECK: %[[W:.*]] = "pyc.constant"() {value = dense<{{\[\[\[\[}}2.0{{.*}}, {{.*}}6.0
// CHECK-NEXT: %[[Y:.*]] = "pyc.conv2d"(%arg0, %[[W]]) {strides = array<i64: 2, 2>}
// CHECK-NEXT: %[[B:.*]] = "pyc.constant"() {value = dense<{{\[\[\[}}1.0{{.*}}, {{.*}}2.0
// CHECK-NEXT: %[[Z:.*]] = "pyc.add"(%[[Y]], %[[B]])
// CHECK-NEXT: return %[[Z]]
// KEEP-LABEL: func.func @norm
// KEEP: "pyc.sub"
func.func @norm(%x: tensor<?x1x8x8xf32>) -> tensor<?x2x4x4xf32> {
  %w = "pyc.constant"() {value = dense<[[[[1.0]]], [[[2.0]]]]> : tensor<2x1x1x1xf32>} : () -> tensor<2x1x1x1xf32>
  %b = "pyc.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %s = "pyc.constant"() {value = dense<[[[2.0]], [[3.0]]]> : tensor<2x1x1xf32>} : () -> tensor<2x1x1xf32>
  %0 = "pyc.conv2d"(%x, %w) {strides = array<i64: 2, 2>} : (tensor<?x1x8x8xf32>, tensor<2x1x1x1xf32>) -> tensor<?x2x4x4xf32>
  %1 = "pyc.add"(%0, %b) : (tensor<?x2x4x4xf32>, tensor<f32>) -> tensor<?x2x4x4xf32>
  %2 = "pyc.mul"(%1, %s) : (tensor<?x2x4x4xf32>, tensor<2x1x1xf32>) -> tensor<?x2x4x4xf32>
  %3 = "pyc.sub"(%2, %b) : (tensor<?x2x4x4xf32>, tensor<f32>) -> tensor<?x2x4x4xf32>
  return %3 : tensor<?x2x4x4xf32>
}
