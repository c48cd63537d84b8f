// Nothing is stored otherwise: no convolution, one that is NHWC already, a group, more transposes
// than the convolution is worth, weights that the compiler does not know.
// RUN: pyc-opt %s --pyc-layout='target=cpu-avx2' -o %t
// RUN: pyc-opt %s -o %t.before
// RUN: diff %t %t.before

func.func @no_convolution(%x: tensor<1x16x56x56xf32>) -> tensor<1x16x56x56xf32> {
  %0 = "pyc.relu"(%x) : (tensor<1x16x56x56xf32>) -> tensor<1x16x56x56xf32>
  return %0 : tensor<1x16x56x56xf32>
}

func.func @last_already(%x: tensor<1x56x56x16xf32>, %w: tensor<3x3x16x16xf32>) -> tensor<1x54x54x16xf32> {
  %0 = "pyc.conv2d"(%x, %w) {layout = "NHWC"} : (tensor<1x56x56x16xf32>, tensor<3x3x16x16xf32>) -> tensor<1x54x54x16xf32>
  return %0 : tensor<1x54x54x16xf32>
}

func.func @group(%x: tensor<1x16x56x56xf32>, %w: tensor<16x16x3x3xf32>) -> tensor<1x16x54x54xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.conv2d"(%x, %w) : (tensor<1x16x56x56xf32>, tensor<16x16x3x3xf32>) -> tensor<1x16x54x54xf32>
    "pyc.yield"(%1) : (tensor<1x16x54x54xf32>) -> ()
  }) {kind = "contraction"} : () -> tensor<1x16x54x54xf32>
  return %0 : tensor<1x16x54x54xf32>
}

func.func @cheap(%x: tensor<8x2x512x512xf32>) -> tensor<8x1x512x512xf32> {
  %w = "pyc.constant"() {value = dense<1.0> : tensor<1x2x1x1xf32>} : () -> tensor<1x2x1x1xf32>
  %0 = "pyc.conv2d"(%x, %w) : (tensor<8x2x512x512xf32>, tensor<1x2x1x1xf32>) -> tensor<8x1x512x512xf32>
  return %0 : tensor<8x1x512x512xf32>
}

func.func @weights_are_an_argument(%x: tensor<8x32x64x64xf32>, %w: tensor<64x32x3x3xf32>) -> tensor<8x64x1x1xf32> {
  %0 = "pyc.conv2d"(%x, %w) : (tensor<8x32x64x64xf32>, tensor<64x32x3x3xf32>) -> tensor<8x64x62x62xf32>
  %1 = "pyc.max_pool2d"(%0) {kernel = array<i64: 3, 3>} : (tensor<8x64x62x62xf32>) -> tensor<8x64x60x60xf32>
  %2 = "pyc.max_pool2d"(%1) {kernel = array<i64: 5, 5>} : (tensor<8x64x60x60xf32>) -> tensor<8x64x56x56xf32>
  %3 = "pyc.max_pool2d"(%2) {kernel = array<i64: 5, 5>} : (tensor<8x64x56x56xf32>) -> tensor<8x64x52x52xf32>
  %4 = "pyc.reduce_mean"(%3) {axes = array<i64: 2, 3>, keepdims = true} : (tensor<8x64x52x52xf32>) -> tensor<8x64x1x1xf32>
  return %4 : tensor<8x64x1x1xf32>
}
