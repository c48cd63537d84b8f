// A pipeline mixes PyC passes, native passes and anchors; consecutive native passes run as one.
// RUN: pyc-opt %s --pass-pipeline='builtin.module(func.func(cse),convert-pyc-to-linalg,canonicalize{max-iterations=4})' | filecheck %s
// RUN: pyc-opt %s --pass-pipeline='func.func(cse),convert-pyc-to-linalg' | filecheck %s
// RUN: pyc-opt %s --cse --convert-pyc-to-linalg --canonicalize='max-iterations=3' | filecheck %s
// RUN: pyc-opt %s --cse --dump-pass-pipeline 2>&1 | filecheck %s --check-prefix DUMP

// DUMP: builtin.module(cse)

// CHECK-LABEL: func.func @twice
// CHECK-COUNT-1: linalg.generic
// CHECK-NOT: pyc.
// DUMP-LABEL: func.func @twice
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  // DUMP: "pyc.relu"
  // DUMP-NOT: "pyc.relu"
  %0 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
