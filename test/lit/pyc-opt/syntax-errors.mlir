// Malformed input ends in a located error and exit status 1.
// RUN: not pyc-opt %s --split-input-file 2>&1 | filecheck %s

// CHECK: syntax-errors.mlir:[[# @LINE + 3]]:3: error: 'pyc.relu' has no custom syntax
// CHECK: note: pyc ops are written generically: %0 = "pyc.relu"(%x) : (TYPE) -> TYPE
func.func @custom(%x: tensor<4xf32>) {
  pyc.relu %x : tensor<4xf32>
  return
}

// -----

// CHECK: syntax-errors.mlir:[[# @LINE + 3]]:10: error: use of value '%x' expects different type
// CHECK-NEXT: {{^  return %x : f64$}}
func.func @type(%x: f32) -> f64 {
  return %x : f64
}

// -----

// CHECK: syntax-errors.mlir:[[# @LINE + 3]]:{{[0-9]+}}: error: unregistered operation 'pyc.rleu'
// CHECK: note: did you mean 'relu'?
func.func @name(%x: tensor<4xf32>) {
  %0 = "pyc.rleu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return
}
