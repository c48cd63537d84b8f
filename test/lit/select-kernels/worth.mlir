// Where the family expects IREE's code to be as good, its kernel is listed behind that.
// RUN: pyc-opt %s --pyc-fuse '--pyc-select-kernels=target=cpu-avx512' --pyc-log=%t.log | filecheck %s
// RUN: filecheck %s --input-file %t.log --check-prefix LOG
// RUN: sed 's/"chosen": "iree"/"chosen": "elementwise:mul+add"/' %t.log > %t.asked
// RUN: pyc-opt %s --pyc-fuse '--pyc-select-kernels=target=cpu-avx512' --pyc-recipe=%t.asked | filecheck %s --check-prefix ASKED

// CHECK-NOT: pyc.kernel
// LOG: "chosen": "iree", {{.*}}{"name": "iree",{{.*}}{"name": "elementwise:mul+add"
// ASKED: family = "elementwise"
func.func @cheap(%x: tensor<512x512xf32>, %y: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %0 = "pyc.mul"(%x, %y) : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %1 = "pyc.add"(%0, %y) : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  return %1 : tensor<512x512xf32>
}
