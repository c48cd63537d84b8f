// Wrong options are refused before anything runs; programs that do not verify never reach the pass.
// RUN: not pyc-opt %s --pyc-canonicalize='max-iterations=many' 2>&1 | filecheck %s --check-prefix VALUE
// RUN: not pyc-opt %s --pyc-canonicalize='rounds=3' 2>&1 | filecheck %s --check-prefix NAME
// RUN: not pyc-opt %s --pyc-canonicalize 2>&1 | filecheck %s

// VALUE: expected an integer
// NAME: rounds
// CHECK: invalid.mlir:[[# @LINE + 3]]:8: error: pyc.gather: `axis`: 0 has no elements to take
func.func @empty(%x: tensor<0xf32>) -> tensor<2xf32> {
  %0 = "pyc.constant"() {value = dense<0> : tensor<2xi64>} : () -> tensor<2xi64>
  %1 = "pyc.gather"(%x, %0) : (tensor<0xf32>, tensor<2xi64>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
