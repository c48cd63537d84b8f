// What has large intermediates is computed in parts; the parts are joined again.
// RUN: pyc-opt %s --pyc-chunk --pyc-log=%t.log -o %t.first
// RUN: filecheck %s --input-file %t.first
// RUN: filecheck %s --input-file %t.log --check-prefix LOG
// RUN: pyc-opt %s --pyc-chunk='mode=memory_first' | filecheck %s --check-prefix MEMORY
// RUN: pyc-opt %s --pyc-chunk --pyc-recipe=%t.log --pyc-log=%t.again -o %t.second
// RUN: diff %t.first %t.second
// RUN: diff %t.log %t.again
// RUN: sed 's/"chosen": "split:4"/"chosen": "split:2"/' %t.log > %t.two
// RUN: pyc-opt %s --pyc-chunk --pyc-recipe=%t.two | filecheck %s --check-prefix TWO
// RUN: sed 's/"chosen": "split:4"/"chosen": "split:5"/' %t.log > %t.five
// RUN: not pyc-opt %s --pyc-chunk --pyc-recipe=%t.five 2>&1 | filecheck %s --check-prefix FIVE

// Heads at a time. The mask has none, so that every part reads all of it.
// LOG: "pass_name": "pyc-chunk", "op_id": "attention.{{[0-9a-f]+}}"
// LOG-SAME: "chosen": "split:4"
// LOG-SAME: {"name": "keep", "cost": {{{.*}}"workspace_bytes": 8388608,
// LOG-SAME: "decided_by": "heuristic"
// LOG-SAME: "evidence": {{.*}}"text": "mode balanced"}, {{{.*}}"text": "region attention"}
// FIVE: the recipe answered 'split:5' [RECIPE_MISMATCH]
// CHECK-LABEL: func.func @attention
// CHECK: %[[Q:.*]] = "pyc.slice"(%arg0) {starts = array<i64: 0, 0, 0>, steps = array<i64: 1, 1, 1>, stops = array<i64: 2, 512, 64>}
// CHECK: %[[K:.*]] = "pyc.slice"(%arg1)
// CHECK: %[[V:.*]] = "pyc.slice"(%arg2)
// CHECK: %[[A:.*]] = "pyc.attention"(%[[Q]], %[[K]], %[[V]], %arg3) {pyc.chunk = "0/4", scale = {{.*}}} : {{.*}} -> tensor<2x512x64xf32>
// CHECK: %[[B:.*]] = "pyc.attention"({{.*}}, %arg3) {pyc.chunk = "1/4"
// CHECK: "pyc.attention"({{.*}}, %arg3) {pyc.chunk = "3/4"
// CHECK: "pyc.concat"(%[[A]], %[[B]]) {axis = 0 : i64} : {{.*}} -> tensor<4x512x64xf32>
// CHECK: "pyc.concat"({{.*}} -> tensor<8x512x64xf32>
// TWO-LABEL: func.func @attention
// TWO: pyc.chunk = "1/2"
func.func @attention(%q: tensor<8x512x64xf32>, %k: tensor<8x512x64xf32>, %v: tensor<8x512x64xf32>, %m: tensor<512x512xf32>) -> tensor<8x512x64xf32> {
  %0 = "pyc.attention"(%q, %k, %v, %m) {scale = 0.125 : f64} : (tensor<8x512x64xf32>, tensor<8x512x64xf32>, tensor<8x512x64xf32>, tensor<512x512xf32>) -> tensor<8x512x64xf32>
  return %0 : tensor<8x512x64xf32>
}

// The same as ops of their own, as ONNX has it: the dimension runs through all of them.
// CHECK-LABEL: func.func @primitive
// CHECK: "pyc.matmul"({{.*}}) {pyc.chunk = "0/
// CHECK: "pyc.mul"({{.*}}) {pyc.chunk = "0/
// CHECK: "pyc.softmax"({{.*}}) {pyc.chunk = "0/
// CHECK: "pyc.matmul"({{.*}}) {pyc.chunk = "0/
// CHECK: "pyc.concat"({{.*}} -> tensor<1x8x512x64xf32>
// CHECK-NEXT: return
func.func @primitive(%q: tensor<1x8x512x64xf32>, %k: tensor<1x8x64x512xf32>, %v: tensor<1x8x512x64xf32>, %s: tensor<f32>) -> tensor<1x8x512x64xf32> {
  %0 = "pyc.matmul"(%q, %k) : (tensor<1x8x512x64xf32>, tensor<1x8x64x512xf32>) -> tensor<1x8x512x512xf32>
  %1 = "pyc.mul"(%0, %s) : (tensor<1x8x512x512xf32>, tensor<f32>) -> tensor<1x8x512x512xf32>
  %2 = "pyc.softmax"(%1) : (tensor<1x8x512x512xf32>) -> tensor<1x8x512x512xf32>
  %3 = "pyc.matmul"(%2, %v) : (tensor<1x8x512x512xf32>, tensor<1x8x512x64xf32>) -> tensor<1x8x512x64xf32>
  return %3 : tensor<1x8x512x64xf32>
}

// Rows at a time: the weights are read whole by every part.
// CHECK-LABEL: func.func @feed_forward
// CHECK: %[[X:.*]] = "pyc.slice"(%arg0)
// CHECK-NEXT: %[[H:.*]] = "pyc.matmul"(%[[X]], %arg1) {pyc.chunk = "0/[[N:[0-9]+]]"}
// CHECK-NEXT: %[[G:.*]] = "pyc.gelu"(%[[H]]) {pyc.chunk = "0/[[N]]"}
// CHECK-NEXT: "pyc.matmul"(%[[G]], %arg2) {pyc.chunk = "0/[[N]]"}
func.func @feed_forward(%x: tensor<1024x512xf32>, %up: tensor<512x2048xf32>, %down: tensor<2048x512xf32>) -> tensor<1024x512xf32> {
  %0 = "pyc.matmul"(%x, %up) : (tensor<1024x512xf32>, tensor<512x2048xf32>) -> tensor<1024x2048xf32>
  %1 = "pyc.gelu"(%0) : (tensor<1024x2048xf32>) -> tensor<1024x2048xf32>
  %2 = "pyc.matmul"(%1, %down) : (tensor<1024x2048xf32>, tensor<2048x512xf32>) -> tensor<1024x512xf32>
  return %2 : tensor<1024x512xf32>
}

// A region that lies below the function's peak is kept in every mode: here the softmax, which
// takes columns together with rows, needs more.
// MEMORY-LABEL: func.func @low
// MEMORY-NOT: pyc.chunk
func.func @low(%q: tensor<8x512x64xf32>, %x: tensor<2048x2048xf32>) -> (tensor<8x512x64xf32>, tensor<2048xf32>) {
  %0 = "pyc.attention"(%q, %q, %q) {scale = 0.125 : f64} : (tensor<8x512x64xf32>, tensor<8x512x64xf32>, tensor<8x512x64xf32>) -> tensor<8x512x64xf32>
  %1 = "pyc.exp"(%x) : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %2 = "pyc.softmax"(%1) {axis = 0 : i64} : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %3 = "pyc.softmax"(%2) {axis = 1 : i64} : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %4 = "pyc.reduce_sum"(%3) {axes = array<i64: 0>} : (tensor<2048x2048xf32>) -> tensor<2048xf32>
  return %0, %4 : tensor<8x512x64xf32>, tensor<2048xf32>
}
