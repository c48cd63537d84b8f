// No parts: an intermediate that is needed elsewhere, one that is small, a dimension that is
// reduced on the way, sizes that are not known, a result as large as what stays inside.
// RUN: pyc-opt %s --pyc-chunk='mode=memory_first' | filecheck %s
// CHECK-NOT: pyc.chunk

func.func @needed_elsewhere(%q: tensor<8x512x64xf32>, %k: tensor<8x64x512xf32>, %v: tensor<8x512x64xf32>) -> (tensor<8x512x64xf32>, tensor<8x512x512xf32>) {
  %0 = "pyc.matmul"(%q, %k) : (tensor<8x512x64xf32>, tensor<8x64x512xf32>) -> tensor<8x512x512xf32>
  %1 = "pyc.softmax"(%0) : (tensor<8x512x512xf32>) -> tensor<8x512x512xf32>
  %2 = "pyc.matmul"(%1, %v) : (tensor<8x512x512xf32>, tensor<8x512x64xf32>) -> tensor<8x512x64xf32>
  return %2, %1 : tensor<8x512x64xf32>, tensor<8x512x512xf32>
}

func.func @small(%q: tensor<4x16x8xf32>) -> tensor<4x16x8xf32> {
  %0 = "pyc.attention"(%q, %q, %q) {scale = 0.5 : f64} : (tensor<4x16x8xf32>, tensor<4x16x8xf32>, tensor<4x16x8xf32>) -> tensor<4x16x8xf32>
  return %0 : tensor<4x16x8xf32>
}

func.func @reduced(%x: tensor<2048x2048xf32>) -> tensor<2048xf32> {
  %0 = "pyc.exp"(%x) : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %1 = "pyc.softmax"(%0) {axis = 0 : i64} : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
  %2 = "pyc.reduce_sum"(%1) {axes = array<i64: 1>} : (tensor<2048x2048xf32>) -> tensor<2048xf32>
  return %2 : tensor<2048xf32>
}

func.func @dynamic(%q: tensor<?x512x64xf32>) -> tensor<?x512x64xf32> {
  %0 = "pyc.attention"(%q, %q, %q) {scale = 0.125 : f64} : (tensor<?x512x64xf32>, tensor<?x512x64xf32>, tensor<?x512x64xf32>) -> tensor<?x512x64xf32>
  return %0 : tensor<?x512x64xf32>
}

func.func @same_size(%x: tensor<1024x1024xf32>, %w: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  %1 = "pyc.matmul"(%0, %w) : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  return %1 : tensor<1024x1024xf32>
}
