// Options that are none, sizes that are not known, budgets that cannot be kept: each at its place.
// RUN: not pyc-opt %s --pyc-plan-memory='mode=fast' 2>&1 | filecheck %s --check-prefix MODE
// RUN: not pyc-opt %s --pyc-plan-memory='budget=-1' 2>&1 | filecheck %s --check-prefix NEGATIVE
// RUN: not pyc-opt %s --pyc-plan-memory 2>&1 | filecheck %s --check-prefix DYNAMIC
// RUN: not pyc-opt %s --pyc-infer-shapes='shapes=64x64' --pyc-plan-memory='budget=1000' 2>&1 | filecheck %s --check-prefix BUDGET
// RUN: pyc-opt %s --pyc-infer-shapes='shapes=64x64' --pyc-plan-memory='budget=32768' | filecheck %s --check-prefix KEPT

// MODE: expected one of latency_first, balanced, memory_first or none, got 'fast'
// NEGATIVE: `budget`: expected 0 or more, got -1
// DYNAMIC: invalid.mlir:{{[0-9]+}}:{{[0-9]+}}: error: func.func: expected static sizes to plan memory, got tensor<?x64xf32>; run pyc-infer-shapes
// BUDGET: invalid.mlir:{{[0-9]+}}:{{[0-9]+}}: error: @main: memory plan: expected an arena of at most 1000 bytes
// BUDGET-SAME: got a program that needs 32768; the smallest budget found to be kept is 32768 bytes
// KEPT: pyc.arena_bytes = 32768
func.func @main(%x: tensor<?x64xf32>) -> tensor<64xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  %1 = "pyc.matmul"(%0, %x) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  %2 = "pyc.reduce_sum"(%1) {axes = array<i64: 0>} : (tensor<?x64xf32>) -> tensor<64xf32>
  return %2 : tensor<64xf32>
}
