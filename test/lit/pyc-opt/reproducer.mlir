// A failing pass leaves a reproducer where one was asked for; running it fails the same way.
// RUN: not pyc-opt %s --pyc-decompose --one-shot-bufferize=bufferize-function-boundaries --mlir-pass-pipeline-crash-reproducer=%t.mlir 2>&1 | filecheck %s
// RUN: filecheck %s --check-prefix STORED --input-file %t.mlir
// RUN: not pyc-opt %t.mlir --run-reproducer 2>&1 | filecheck %s --check-prefix AGAIN
// RUN: not pyc-opt %s --run-reproducer 2>&1 | filecheck %s --check-prefix NONE

// CHECK: reproducer.mlir:[[# @LINE + 8]]:8: error: op was not bufferized
// CHECK: note: reproducer generated at `{{.*}}.mlir`
// STORED: "pyc.neg"
// STORED: mlir_reproducer: {
// STORED-NEXT: pipeline: "builtin.module(pyc-decompose,one-shot-bufferize{bufferize-function-boundaries})",
// AGAIN: error:
// NONE: error: {{.*}}expected `mlir_reproducer` resources to run, got none
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
