// Faults of the user end in one message with the place and a reason code, and exit status 1.
// RUN: not pyc-compile %s --emit linalg 2>&1 | filecheck %s --check-prefix IR
// RUN: not pyc-compile %s -o %t --target abacus 2>&1 | filecheck %s --check-prefix TARGET
// RUN: not pyc-compile %s --emit linalg --max-compile-time=5s 2>&1 | filecheck %s --check-prefix CLAUSE
// RUN: not pyc-compile %s 2>&1 | filecheck %s --check-prefix USAGE
// RUN: not pyc-compile %t.none.onnx -o %t 2>&1 | filecheck %s --check-prefix NONE

// IR-NOT: Traceback
// IR: errors.mlir:16:8: error: {{.*}} [INVALID_IR]
// IR-NEXT: "pyc.relu"
// TARGET: pyc-compile: error: target: expected one of cpu, {{.*}} got 'abacus' [UNKNOWN_TARGET]
// CLAUSE: pyc-compile: error: contract clause `max_compile_seconds`: {{.*}} [UNCHECKABLE_CLAUSE]
// USAGE: pyc-compile: error: command line: expected -o FILE {{.*}} [BAD_ARGUMENT]
// NONE: .none.onnx: expected an ONNX file, got: No such file or directory{{.*}} [FILE_ACCESS]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.relu"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
