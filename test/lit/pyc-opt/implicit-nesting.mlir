// A native pass given as a flag is nested in the op that it runs on, as mlir-opt does.
// RUN: pyc-opt %s --affine-loop-unroll='unroll-factor=2' | filecheck %s

// CHECK-LABEL: func.func @loop
// CHECK: affine.for %{{.*}} = 0 to 4 step 2
func.func @loop(%x: memref<4xf32>, %v: f32) {
  affine.for %i = 0 to 4 {
    affine.store %v, %x[%i] : memref<4xf32>
  }
  return
}
