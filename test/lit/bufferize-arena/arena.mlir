// Every allocation is a view of one arena at a planned offset; results go to arguments.
// RUN: pyc-opt %s --convert-pyc-to-linalg --pyc-bufferize-arena | filecheck %s
// RUN: pyc-opt %s --convert-pyc-to-linalg --pyc-bufferize-arena='arena=alloc' | filecheck %s --check-prefix ALLOC
// RUN: pyc-opt %s --pyc-plan-memory --convert-pyc-to-linalg --pyc-bufferize-arena | filecheck %s --check-prefix PLANNED

// Three products at once; the planned order needs two.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: memref<64x64xf32>, %[[OUT:.*]]: memref<64xf32> {bufferize.result}, %[[ARENA:.*]]: memref<49408xi8> {pyc.arena})
// CHECK-SAME: pyc.arena_bytes = 49408 : i64
// CHECK-NOT: memref.alloc
// CHECK-DAG: memref.view %[[ARENA]][%{{.*}}][] {pyc.live = array<i64: {{[0-9]+}}, {{[0-9]+}}>, pyc.offset = 0 : i64, pyc.slot = 0 : i64} : memref<49408xi8> to memref<64x64xf32>
// CHECK: linalg.matmul
// CHECK: linalg.generic {{.*}} outs(%[[OUT]] : memref<64xf32>)
// CHECK: return{{$}}
// ALLOC-LABEL: func.func @main
// ALLOC-SAME: %[[OUT:.*]]: memref<64xf32> {bufferize.result}) attributes
// ALLOC: %[[ARENA:.*]] = memref.alloc() {alignment = 64 : i64} : memref<49408xi8>
// ALLOC-NOT: memref.alloc
// ALLOC: memref.dealloc %[[ARENA]]
// ALLOC-NEXT: return
// PLANNED: memref<33024xi8> {pyc.arena}
func.func @main(%x: tensor<64x64xf32>) -> tensor<64xf32> {
  %a = "pyc.matmul"(%x, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = "pyc.matmul"(%a, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = "pyc.matmul"(%b, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = "pyc.reduce_sum"(%a) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  %1 = "pyc.reduce_sum"(%b) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  %2 = "pyc.reduce_sum"(%c) {axes = array<i64: 0>} : (tensor<64x64xf32>) -> tensor<64xf32>
  %3 = "pyc.add"(%0, %1) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %4 = "pyc.add"(%3, %2) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  return %4 : tensor<64xf32>
}
