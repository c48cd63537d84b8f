// Stops at each stage of the way down; what is emitted can be read in again.
// RUN: pyc-compile %s --emit pyc | filecheck %s --check-prefix PYC
// RUN: pyc-compile %s --emit linalg | filecheck %s --check-prefix LINALG
// RUN: pyc-compile %s --compile-to=flow | filecheck %s --check-prefix FLOW
// RUN: pyc-compile %s --emit pyc -o %t.mlir
// RUN: pyc-compile %t.mlir --emit linalg | filecheck %s --check-prefix LINALG
// RUN: pyc-compile - --emit linalg < %s | filecheck %s --check-prefix LINALG
// RUN: pyc-compile %s --input 2x4 --emit pyc | filecheck %s --check-prefix REFINED

// PYC-LABEL: func.func @main
// PYC: "pyc.group"
// LINALG-LABEL: func.func @main
// LINALG-NOT: pyc.
// LINALG: linalg.generic
// FLOW: flow.executable
// REFINED-LABEL: func.func @main
// REFINED-SAME: tensor<2x4xf32>
func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = "pyc.tanh"(%x) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %1 = "pyc.relu"(%0) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return %1 : tensor<?x4xf32>
}
