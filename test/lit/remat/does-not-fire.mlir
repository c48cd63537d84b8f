// Nothing waits over the peak, or what waits is an argument or a result: no copy, no change.
// RUN: pyc-opt %s --pyc-remat='slowdown=1.0' -o %t.after
// RUN: pyc-opt %s -o %t.before
// RUN: diff %t.before %t.after

func.func @chain(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = "pyc.matmul"(%x, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = "pyc.matmul"(%0, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = "pyc.matmul"(%1, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %2 : tensor<64x64xf32>
}

func.func @returned(%v: tensor<64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %0 = "pyc.broadcast_to"(%v) {shape = array<i64: 64, 64>} : (tensor<64xf32>) -> tensor<64x64xf32>
  %1 = "pyc.matmul"(%0, %0) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = "pyc.matmul"(%1, %0) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0, %2 : tensor<64x64xf32>, tensor<64x64xf32>
}
