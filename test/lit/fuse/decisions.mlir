// Each anchor makes one decision; its log is a recipe that gives the same module and the same log.
// RUN: pyc-opt %s --pyc-fuse --pyc-log=%t.log -o %t.first
// RUN: filecheck %s --input-file %t.log
// RUN: pyc-opt %s --pyc-fuse --pyc-recipe=%t.log --pyc-log=%t.again -o %t.second
// RUN: diff %t.first %t.second
// RUN: diff %t.log %t.again
// RUN: sed 's/"chosen": "fuse:matmul+relu"/"chosen": "keep"/' %t.log > %t.keep
// RUN: pyc-opt %s --pyc-fuse --pyc-recipe=%t.keep | filecheck %s --check-prefix KEEP
// RUN: sed 's/"chosen": "fuse:matmul+relu"/"chosen": "fuse:all"/' %t.log > %t.other
// RUN: not pyc-opt %s --pyc-fuse --pyc-recipe=%t.other 2>&1 | filecheck %s --check-prefix OTHER

// CHECK: "pass_name": "pyc-fuse", "op_id": "matmul.{{[0-9a-f]+}}"
// CHECK-SAME: "chosen": "fuse:matmul+relu"
// CHECK-SAME: {"name": "fuse:matmul+relu", "cost": {{{.*}}"traffic_bytes": 128,
// CHECK-SAME: {"name": "keep", "cost": {{{.*}}"traffic_bytes": 256,
// CHECK-SAME: "decided_by": "heuristic"
// KEEP-NOT: "pyc.group"
// OTHER: expected one of ['fuse:matmul+relu', 'keep'], the recipe answered 'fuse:all' [RECIPE_MISMATCH]
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "pyc.relu"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
