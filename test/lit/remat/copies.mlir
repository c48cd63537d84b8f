// Ops that run again right before a late reader, as many as the budget or the slowdown wants.
// RUN: pyc-opt %s --pyc-remat='slowdown=1.0' | filecheck %s
// RUN: pyc-opt %s --pyc-remat='budget=49152' --cse | filecheck %s
// RUN: pyc-opt %s --pyc-remat='slowdown=0.0' | filecheck %s --check-prefix KEEP
// RUN: pyc-opt %s --pyc-remat='budget=49152' --pyc-log=%t.log -o %t.first
// RUN: pyc-opt %s --pyc-remat='budget=49152' --pyc-recipe=%t.log -o %t.second
// RUN: diff %t.first %t.second
// RUN: filecheck %s --input-file %t.log --check-prefix LOG

// LOG: "pass_name": "pyc-remat", "op_id": "
// LOG-SAME: "chosen": "recompute"
// LOG-SAME: peak 65536 -> 49152 bytes, 1 ops run again

// CHECK-LABEL: func.func @main
// CHECK: "pyc.broadcast_to"(%arg0) {shape
// CHECK: %[[C:.*]] = "pyc.matmul"(%1, %2)
// CHECK-NEXT: %[[COPY:.*]] = "pyc.broadcast_to"(%arg0) {pyc.recomputed = 1 : i64
// CHECK-NEXT: "pyc.matmul"(%[[COPY]], %[[C]])
// KEEP-NOT: pyc.recomputed
func.func @main(%v: tensor<64xf32>, %w: tensor<64x64xf32>) -> tensor<64xf32> {
  %wide = "pyc.broadcast_to"(%v) {shape = array<i64: 64, 64>} : (tensor<64xf32>) -> tensor<64x64xf32>
  %a = "pyc.matmul"(%wide, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = "pyc.matmul"(%a, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = "pyc.matmul"(%a, %b) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d = "pyc.matmul"(%wide, %c) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = "pyc.reduce_sum"(%d) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}
