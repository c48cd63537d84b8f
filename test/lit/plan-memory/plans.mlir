// Order, offsets and recomputed copies; the log is a recipe that gives the same module again.
// RUN: pyc-opt %s --pyc-plan-memory | filecheck %s
// RUN: pyc-opt %s --pyc-plan-memory='mode=memory_first slowdown=1.0' | filecheck %s --check-prefix AGAIN
// RUN: pyc-opt %s --pyc-plan-memory --pyc-log=%t.log -o %t.first
// RUN: pyc-opt %s --pyc-plan-memory --pyc-recipe=%t.log -o %t.second
// RUN: diff %t.first %t.second
// RUN: filecheck %s --input-file %t.log --check-prefix LOG

// Each product is reduced before the next one is made: two of them are live at once, not three.
// CHECK-LABEL: func.func @reduced
// CHECK-SAME: pyc.arena_bytes = 33024 : i64, pyc.lower_bound = 33024 : i64
// CHECK: "pyc.matmul"(%arg0, %arg1) {pyc.live = array<i64: 0, 2>
// CHECK-NEXT: "pyc.reduce_sum"
// CHECK-NEXT: "pyc.matmul"(%0, %arg1) {pyc.live = array<i64: 2, 5>
// CHECK-NEXT: "pyc.reduce_sum"
// The sum takes over the bytes of a summand.
// CHECK-NEXT: "pyc.add"(%1, %3) {pyc.live = array<i64: 4, 7>, pyc.offset = 32768 : i64, pyc.slot = 2 : i64}
// What leaves the function lies outside the arena.
// CHECK: %[[OUT:.*]] = "pyc.add"(%{{.*}}, %{{.*}}) :
// CHECK-NEXT: return %[[OUT]]
// LOG: "pass_name": "pyc-plan-memory", "op_id": "
// LOG-SAME: "chosen": "planned"
// LOG-SAME: {"name": "planned", "cost": {{{.*}}"workspace_bytes": 33024
// LOG-SAME: {"name": "program-order", "cost": {{{.*}}"workspace_bytes": 49408
// LOG-SAME: "evidence": {{.*}}"text": "mode balanced"
func.func @reduced(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64xf32> {
  %a = "pyc.matmul"(%x, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = "pyc.matmul"(%a, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = "pyc.matmul"(%b, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = "pyc.reduce_sum"(%a) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  %1 = "pyc.reduce_sum"(%b) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  %2 = "pyc.reduce_sum"(%c) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  %3 = "pyc.add"(%0, %1) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %4 = "pyc.add"(%3, %2) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  return %4 : tensor<64xf32>
}

// The wide value is needed at both ends: kept, or run again right before its late reader.
// CHECK-LABEL: func.func @again
// CHECK-SAME: pyc.arena_bytes = 65536
// CHECK-NOT: pyc.recomputed
// AGAIN-LABEL: func.func @again
// AGAIN-SAME: pyc.arena_bytes = 49152
// AGAIN: %[[COPY:.*]] = "pyc.broadcast_to"(%arg0) {{{.*}}pyc.recomputed = 1 : i64
// AGAIN-NEXT: "pyc.matmul"(%[[COPY]],
func.func @again(%v: tensor<64xf32>, %w: tensor<64x64xf32>) -> tensor<64xf32> {
  %wide = "pyc.broadcast_to"(%v) {shape = array<i64: 64, 64>} : (tensor<64xf32>) -> tensor<64x64xf32>
  %a = "pyc.matmul"(%wide, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = "pyc.matmul"(%a, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = "pyc.matmul"(%a, %b) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d = "pyc.matmul"(%wide, %c) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = "pyc.reduce_sum"(%d) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}
