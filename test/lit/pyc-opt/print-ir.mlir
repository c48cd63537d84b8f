// IR dumps around native and PyC passes: all, chosen ones, changed and failed ones, and files.
// RUN: pyc-opt %s --cse --pyc-decompose --mlir-print-ir-before-all -o %t 2>&1 | filecheck %s --check-prefix BEFORE
// RUN: pyc-opt %s --cse --pyc-decompose --mlir-print-ir-after-all -o %t 2>&1 | filecheck %s --check-prefix AFTER
// RUN: pyc-opt %s --pass-pipeline='func.func(cse,canonicalize),pyc-decompose' --mlir-print-ir-after=canonicalize -o %t 2>&1 | filecheck %s --check-prefix ONE
// RUN: pyc-opt %s --cse --canonicalize --pyc-decompose --pyc-decompose --mlir-print-ir-after-change -o %t 2>&1 | filecheck %s --check-prefix CHANGE
// RUN: rm -rf %t.dir && pyc-opt %s --cse --pyc-decompose --mlir-print-ir-tree-dir=%t.dir -o %t
// RUN: ls %t.dir/builtin_module_no-symbol-name | filecheck %s --check-prefix TREE

// BEFORE: IR Dump Before CSEPass: cse
// BEFORE: "pyc.relu"
// BEFORE: IR Dump Before Decompose: pyc-decompose
// BEFORE-NOT: IR Dump

// AFTER: IR Dump After CSEPass: cse
// AFTER-COUNT-1: "pyc.relu"
// AFTER: IR Dump After Decompose: pyc-decompose

// ONE-NOT: IR Dump {{.*}}cse
// ONE: IR Dump After CanonicalizerPass: canonicalize
// ONE-NOT: IR Dump

// CHANGE: IR Dump After CSEPass: cse
// CHANGE-NOT: CanonicalizerPass
// CHANGE: IR Dump After Decompose: pyc-decompose
// CHANGE-NOT: IR Dump

// TREE: 0_cse.mlir
// TREE: 1_pyc-decompose.mlir
func.func @twice(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
