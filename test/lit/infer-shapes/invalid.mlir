// Shapes that are none, too many, or contradict the program.
// RUN: not pyc-opt %s --pyc-infer-shapes='shapes=2xx' 2>&1 | filecheck %s --check-prefix TEXT
// RUN: not pyc-opt %s --pyc-infer-shapes='shapes=2x3,4' 2>&1 | filecheck %s --check-prefix COUNT
// RUN: not pyc-opt %s --pyc-infer-shapes='shapes=2x4' 2>&1 | filecheck %s --check-prefix SIZE
// RUN: not pyc-opt %s --pyc-infer-shapes='shapes=5x3' 2>&1 | filecheck %s --check-prefix OP

// TEXT: expected sizes or ? joined by x, got '2xx'
// COUNT: expected 1 shapes, got 2
// SIZE: argument 0: expected a shape within tensor<?x3xf32>, got tensor<2x4xf32>
// OP: dimensions 5 and 2 do not broadcast
func.func @main(%x: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %0 = "pyc.constant"() {value = dense<1.0> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
  %1 = "pyc.add"(%x, %0) : (tensor<?x3xf32>, tensor<2x3xf32>) -> tensor<?x3xf32>
  return %1 : tensor<?x3xf32>
}
