// What is not understood is refused where it stands: pyc ops, unknown sizes, pointers that get away.
// RUN: not pyc-opt %s --pyc-bufferize-arena='arena=heap' 2>&1 | filecheck %s --check-prefix OPTION
// RUN: not pyc-opt %s --split-input-file --pyc-bufferize-arena 2>&1 | filecheck %s

// OPTION: expected one of argument, alloc, got 'heap'
// CHECK: invalid.mlir:{{[0-9]+}}:{{[0-9]+}}: error: pyc.relu has no lowering to linalg here
func.func @pyc(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK: error: func.func: expected static sizes to plan memory, got tensor<?xf32>; run pyc-infer-shapes
func.func @dynamic(%x: tensor<?xf32>) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}

// -----

// CHECK: error: expected an op that is known to keep no pointer to what it uses, got func.call
func.func private @other(tensor<4xf32>)
func.func @call(%v: f32) {
  %0 = tensor.empty() : tensor<4xf32>
  %1 = linalg.fill ins(%v : f32) outs(%0 : tensor<4xf32>) -> tensor<4xf32>
  func.call @other(%1) : (tensor<4xf32>) -> ()
  return
}

// -----

// CHECK: error: expected a function of one block, got 2
func.func @blocks(%x: tensor<4xf32>) -> tensor<4xf32> {
  cf.br ^next
^next:
  return %x : tensor<4xf32>
}
