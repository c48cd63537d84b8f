// Primitive ops stay, and of the composite ones those that `only` does not name.
// RUN: pyc-opt %s --pyc-decompose='only=relu' | filecheck %s
// RUN: not pyc-opt %s --pyc-decompose='only=exp' 2>&1 | filecheck %s --check-prefix PRIMITIVE
// RUN: not pyc-opt %s --pyc-decompose='only=relue' 2>&1 | filecheck %s --check-prefix UNKNOWN

// PRIMITIVE: pyc-decompose: `only`: expected composite ops {{.*}} got ['exp']
// UNKNOWN: got ['relue']

// CHECK-LABEL: func.func @main
// CHECK: "pyc.matmul"(%arg0, %arg1)
// CHECK: "pyc.exp"
// CHECK: "pyc.softmax"
func.func @main(%x: tensor<2x3xf32>, %w: tensor<3x4xf32>) -> tensor<2x4xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  %1 = "pyc.exp"(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = "pyc.softmax"(%1) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
