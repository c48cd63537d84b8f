// Budgets that no recomputation keeps, and sizes that are not known.
// RUN: not pyc-opt %s --pyc-remat='slowdown=-0.5' 2>&1 | filecheck %s --check-prefix NEGATIVE
// RUN: not pyc-opt %s --pyc-remat 2>&1 | filecheck %s --check-prefix DYNAMIC
// RUN: not pyc-opt %s --pyc-infer-shapes='shapes=64x64' --pyc-remat='budget=1000' 2>&1 | filecheck %s --check-prefix BUDGET

// NEGATIVE: `slowdown`: expected 0 or more, got -0.5
// DYNAMIC: invalid.mlir:{{[0-9]+}}:{{[0-9]+}}: error: func.func: expected static sizes to plan memory, got tensor<?x64xf32>; run pyc-infer-shapes
// BUDGET: invalid.mlir:{{[0-9]+}}:{{[0-9]+}}: error: @main: expected at most 1000 live bytes, got an op that needs 32768
// BUDGET-SAME: [BUDGET_IMPOSSIBLE]
func.func @main(%x: tensor<?x64xf32>) -> tensor<64xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  %1 = "pyc.matmul"(%0, %x) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  %2 = "pyc.reduce_sum"(%1) {axes = array<i64: 0>} : (tensor<?x64xf32>) -> tensor<64xf32>
  return %2 : tensor<64xf32>
}
