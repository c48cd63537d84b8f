// Nothing is found: x exp(x), an intermediate that is needed elsewhere, epsilon outside of the root.
// RUN: pyc-opt %s --pyc-recognize -o %t
// RUN: pyc-opt %s -o %t.before
// RUN: diff %t %t.before

func.func @product(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "pyc.exp"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "pyc.mul"(%x, %0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

func.func @needed(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = "pyc.reduce_max"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %1 = "pyc.sub"(%x, %0) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %2 = "pyc.exp"(%1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "pyc.reduce_sum"(%2) {axes = array<i64: 1>, keepdims = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %4 = "pyc.div"(%2, %3) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  return %2, %4 : tensor<4x8xf32>, tensor<4x8xf32>
}

func.func @outside(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %e = "pyc.constant"() {value = dense<1.0e-05> : tensor<f32>} : () -> tensor<f32>
  %0 = "pyc.mul"(%x, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "pyc.reduce_mean"(%0) {axes = array<i64: 1>, keepdims = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %2 = "pyc.sqrt"(%1) : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %3 = "pyc.add"(%2, %e) : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %4 = "pyc.div"(%x, %3) : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}
