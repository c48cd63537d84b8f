// The elementwise ops of a group become one op behind its anchor; ids travel as locations.
// RUN: pyc-opt %s --convert-pyc-to-linalg | filecheck %s
// RUN: pyc-opt %s --convert-pyc-to-linalg --mlir-print-debuginfo | filecheck %s --check-prefix LOC

// CHECK-LABEL: func.func @main
// CHECK: linalg.matmul
// CHECK-COUNT-1: linalg.generic
// CHECK: arith.addf
// CHECK: arith.maximumf
// CHECK-NOT: linalg.generic
// CHECK-NOT: pyc.
// CHECK: return
// LOC-DAG: loc("pyc:matmul.{{[0-9a-f]+}}"
// LOC-DAG: loc("pyc:group.{{[0-9a-f]+}}"
func.func @main(%x: tensor<4x4xf32>, %b: tensor<4xf32>) -> tensor<4x4xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.matmul"(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = "pyc.add"(%1, %b) : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
    %3 = "pyc.relu"(%2) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    "pyc.yield"(%3) : (tensor<4x4xf32>) -> ()
  }) {kind = "contraction"} : () -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
