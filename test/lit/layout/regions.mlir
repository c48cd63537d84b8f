// Regions around convolutions are stored in NHWC; a log replays and may be told otherwise.
// RUN: pyc-opt %s --pyc-layout='target=cpu-avx2' --pyc-log=%t.log -o %t.first
// RUN: filecheck %s --input-file %t.first
// RUN: filecheck %s --input-file %t.log --check-prefix LOG
// RUN: pyc-opt %s --pyc-layout='target=cpu-avx2' --pyc-recipe=%t.log --pyc-log=%t.again -o %t.second
// RUN: diff %t.first %t.second
// RUN: diff %t.log %t.again
// RUN: pyc-opt %t.first --pyc-layout='target=cpu-avx2' -o %t.third
// RUN: diff %t.first %t.third
// RUN: sed 's/"chosen": "NHWC"/"chosen": "keep"/' %t.log > %t.keep
// RUN: pyc-opt %s --pyc-layout='target=cpu-avx2' --pyc-recipe=%t.keep | filecheck %s --check-prefix KEEP
// RUN: pyc-opt %s --pyc-layout='target=cuda' | filecheck %s --check-prefix KEEP

// Weights are laid out here; the bias needs one dimension; pooling and mean follow.
// LOG: "pass_name": "pyc-layout", "op_id": "conv2d.{{[0-9a-f]+}}"
// LOG-SAME: "chosen": "NHWC"
// LOG-SAME: {"name": "NHWC", "cost": {"seconds": {{.*}}, "reason": "2 convolutions and poolings, 1 transposes of 200704 bytes"}
// LOG-SAME: {"name": "keep", "cost": {"seconds": {{.*}}, "reason": "2 convolutions and poolings, 0 transposes of 0 bytes"}
// LOG-SAME: "decided_by": "heuristic"
// CHECK-LABEL: func.func @classifier
// CHECK: %[[X:.*]] = "pyc.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>}
// CHECK: %[[W:.*]] = "pyc.constant"() {value = dense<1.000000e+00> : tensor<3x3x16x32xf32>}
// CHECK: %[[Y:.*]] = "pyc.conv2d"(%[[X]], %[[W]]) {layout = "NHWC", pads = {{.*}} -> tensor<1x56x56x32xf32>
// CHECK: %[[B:.*]] = "pyc.constant"() {value = dense<3.000000e+00> : tensor<32xf32>}
// CHECK: %[[Z:.*]] = "pyc.add"(%[[Y]], %[[B]])
// CHECK: %[[P:.*]] = "pyc.max_pool2d"(%[[Z]]) {{{.*}}layout = "NHWC"{{.*}} -> tensor<1x28x28x32xf32>
// CHECK: %[[M:.*]] = "pyc.reduce_mean"(%[[P]]) {axes = array<i64: 1, 2>, keepdims = true}
// CHECK: "pyc.reshape"(%[[M]]) {shape = array<i64: 1, 32>}
// KEEP-LABEL: func.func @classifier
// KEEP-NOT: NHWC
func.func @classifier(%x: tensor<1x16x56x56xf32>) -> tensor<1x32xf32> {
  %w = "pyc.constant"() {value = dense<1.0> : tensor<32x16x3x3xf32>} : () -> tensor<32x16x3x3xf32>
  %c = "pyc.constant"() {value = dense<3.0> : tensor<1x32x1x1xf32>} : () -> tensor<1x32x1x1xf32>
  %0 = "pyc.conv2d"(%x, %w) {pads = array<i64: 1, 1, 1, 1>} : (tensor<1x16x56x56xf32>, tensor<32x16x3x3xf32>) -> tensor<1x32x56x56xf32>
  %1 = "pyc.add"(%0, %c) : (tensor<1x32x56x56xf32>, tensor<1x32x1x1xf32>) -> tensor<1x32x56x56xf32>
  %2 = "pyc.max_pool2d"(%1) {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>} : (tensor<1x32x56x56xf32>) -> tensor<1x32x28x28xf32>
  %3 = "pyc.reduce_mean"(%2) {axes = array<i64: 2, 3>, keepdims = true} : (tensor<1x32x28x28xf32>) -> tensor<1x32x1x1xf32>
  %4 = "pyc.reshape"(%3) {shape = array<i64: 1, 32>} : (tensor<1x32x1x1xf32>) -> tensor<1x32xf32>
  return %4 : tensor<1x32xf32>
}

// The transposes of the model vanish; the batch may be of any size.
// CHECK-LABEL: func.func @spelled
// CHECK: "pyc.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>}
// CHECK: %[[A:.*]] = "pyc.conv2d"
// CHECK-NEXT: %[[N:.*]] = "pyc.layernorm"(%[[A]], %arg1, %arg1)
// CHECK-NEXT: %[[S:.*]] = "pyc.add"(%[[N]], %[[A]])
// CHECK: "pyc.conv2d"(%[[S]],
// CHECK-NEXT: "pyc.transpose"({{.*}}) {permutation = array<i64: 0, 3, 1, 2>}
// CHECK-NEXT: return
// KEEP-LABEL: func.func @spelled
// KEEP-NOT: NHWC
func.func @spelled(%x: tensor<?x16x56x56xf32>, %v: tensor<16xf32>) -> tensor<?x16x56x56xf32> {
  %w = "pyc.constant"() {value = dense<1.0> : tensor<16x16x3x3xf32>} : () -> tensor<16x16x3x3xf32>
  %0 = "pyc.conv2d"(%x, %w) {pads = array<i64: 1, 1, 1, 1>} : (tensor<?x16x56x56xf32>, tensor<16x16x3x3xf32>) -> tensor<?x16x56x56xf32>
  %1 = "pyc.transpose"(%0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<?x16x56x56xf32>) -> tensor<?x56x56x16xf32>
  %2 = "pyc.layernorm"(%1, %v, %v) : (tensor<?x56x56x16xf32>, tensor<16xf32>, tensor<16xf32>) -> tensor<?x56x56x16xf32>
  %3 = "pyc.transpose"(%2) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<?x56x56x16xf32>) -> tensor<?x16x56x56xf32>
  %4 = "pyc.add"(%3, %0) : (tensor<?x16x56x56xf32>, tensor<?x16x56x56xf32>) -> tensor<?x16x56x56xf32>
  %5 = "pyc.conv2d"(%4, %w) {pads = array<i64: 1, 1, 1, 1>} : (tensor<?x16x56x56xf32>, tensor<16x16x3x3xf32>) -> tensor<?x16x56x56xf32>
  return %5 : tensor<?x16x56x56xf32>
}
