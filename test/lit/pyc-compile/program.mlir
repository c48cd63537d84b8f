// A program runs under pyc-run and under IREE's own tool, and tells how.
// RUN: pyc-compile %s -o %t.vmfb -v 2>&1 | filecheck %s --check-prefix SUMMARY
// RUN: pyc-run %t.vmfb --input "4xf32=-1 0 2 3" | filecheck %s --check-prefix VALUES
// RUN: iree-run-module --module=%t.vmfb --device=local-sync --function=main --input="4xf32=-1 0 2 3" | filecheck %s --check-prefix IREE
// RUN: not pyc-run %t.vmfb --input 5xf32 2>&1 | filecheck %s --check-prefix SHAPE

// SUMMARY: PyC lowers to linalg
// SUMMARY: for target cpu
// SUMMARY: inputs arg0: tensor<4xf32>
// SUMMARY: pyc-run {{.*}} --input arg0=4xf32=@seed:0
// SUMMARY: iree-run-module {{.*}} --input=4xf32=1
// VALUES: result0: 4xf32
// VALUES-NEXT: [0. 0. 2. 3.]
// IREE: 4xf32=0 0 2 3
// SHAPE: pyc-run: error: argument `arg0`: expected tensor<4xf32> {{.*}} [ARGUMENT_SHAPE]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
