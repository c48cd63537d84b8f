// Timing and statistics follow mlir-opt's layout.
// RUN: pyc-opt %s --cse --pyc-decompose --mlir-timing --mlir-pass-statistics 2>&1 | filecheck %s

// CHECK: ... Pass statistics report ...
// CHECK: ... Execution time report ...
// CHECK: Parser
// CHECK: cse
// CHECK: pyc-decompose
// CHECK: Output
// CHECK: Total
func.func @empty() {
  return
}
