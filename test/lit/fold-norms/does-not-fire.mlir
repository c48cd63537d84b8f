// Nothing is folded: sums alone, a result that is needed elsewhere, computed weights, 16-bit floats.
// RUN: pyc-opt %s --pyc-fold-norms -o %t
// RUN: pyc-opt %s -o %t.before
// RUN: diff %t %t.before

func.func @sum(%x: tensor<1x1x4x4xf32>) -> tensor<1x1x4x4xf32> {
  %w = "pyc.constant"() {value = dense<2.0> : tensor<1x1x1x1xf32>} : () -> tensor<1x1x1x1xf32>
  %0 = "pyc.conv2d"(%x, %w) : (tensor<1x1x4x4xf32>, tensor<1x1x1x1xf32>) -> tensor<1x1x4x4xf32>
  %1 = "pyc.add"(%0, %w) : (tensor<1x1x4x4xf32>, tensor<1x1x1x1xf32>) -> tensor<1x1x4x4xf32>
  return %1 : tensor<1x1x4x4xf32>
}

func.func @needed_elsewhere(%x: tensor<1x1x4x4xf32>) -> (tensor<1x1x4x4xf32>, tensor<1x1x4x4xf32>) {
  %w = "pyc.constant"() {value = dense<2.0> : tensor<1x1x1x1xf32>} : () -> tensor<1x1x1x1xf32>
  %0 = "pyc.conv2d"(%x, %w) : (tensor<1x1x4x4xf32>, tensor<1x1x1x1xf32>) -> tensor<1x1x4x4xf32>
  %1 = "pyc.mul"(%0, %w) : (tensor<1x1x4x4xf32>, tensor<1x1x1x1xf32>) -> tensor<1x1x4x4xf32>
  return %0, %1 : tensor<1x1x4x4xf32>, tensor<1x1x4x4xf32>
}

func.func @computed(%x: tensor<1x1x4x4xf32>, %v: tensor<1x1x1x1xf32>) -> tensor<1x1x4x4xf32> {
  %w = "pyc.constant"() {value = dense<2.0> : tensor<1x1x1x1xf32>} : () -> tensor<1x1x1x1xf32>
  %0 = "pyc.conv2d"(%x, %v) : (tensor<1x1x4x4xf32>, tensor<1x1x1x1xf32>) -> tensor<1x1x4x4xf32>
  %1 = "pyc.mul"(%0, %w) : (tensor<1x1x4x4xf32>, tensor<1x1x1x1xf32>) -> tensor<1x1x4x4xf32>
  return %1 : tensor<1x1x4x4xf32>
}

func.func @halves(%x: tensor<1x1x4x4xf16>) -> tensor<1x1x4x4xf16> {
  %w = "pyc.constant"() {value = dense<2.0> : tensor<1x1x1x1xf16>} : () -> tensor<1x1x1x1xf16>
  %0 = "pyc.conv2d"(%x, %w) : (tensor<1x1x4x4xf16>, tensor<1x1x1x1xf16>) -> tensor<1x1x4x4xf16>
  %1 = "pyc.mul"(%0, %w) : (tensor<1x1x4x4xf16>, tensor<1x1x1x1xf16>) -> tensor<1x1x4x4xf16>
  return %1 : tensor<1x1x4x4xf16>
}
