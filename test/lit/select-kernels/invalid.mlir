// RUN: not pyc-opt %s '--pyc-select-kernels=families=rows+gem' 2>&1 | filecheck %s --check-prefix=FAMILY
// RUN: not pyc-opt %s '--pyc-select-kernels=target=abacus' 2>&1 | filecheck %s --check-prefix=TARGET
// RUN: pyc-opt %s --split-input-file --verify-diagnostics --convert-pyc-to-linalg

// FAMILY: `families`: expected some of {{.*}}gemm{{.*}}, got ['gem']
// TARGET: `target`: expected one of {{.*}}cpu-avx512{{.*}}, got 'abacus'
func.func @feeds(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{pyc.kernel: expected 1 feeds for x<4x8>, got 0}}
  %y = "pyc.softmax"(%x) {axis = -1 : i64, pyc.kernel = {covers = 1 : i64, family = "rows", feeds = [], knobs = "Rows(operation='softmax', rows=4, columns=8)"}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @shape(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{pyc.kernel: expected a value for x<4x9>, got tensor<4x8xf32>}}
  %y = "pyc.softmax"(%x) {axis = -1 : i64, pyc.kernel = {covers = 1 : i64, family = "rows", feeds = ["0|1"], knobs = "Rows(operation='softmax', rows=4, columns=9)"}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @knobs(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{expected the knobs Rows(field=value, ...), got "__import__('os')"}}
  %y = "pyc.softmax"(%x) {axis = -1 : i64, pyc.kernel = {covers = 1 : i64, family = "rows", feeds = ["0|1"], knobs = "__import__('os')"}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @attribute(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{expected pyc.kernel with family, knobs, covers and feeds}}
  %y = "pyc.softmax"(%x) {axis = -1 : i64, pyc.kernel = {family = "rows"}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @family(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{expected a family of}}
  %y = "pyc.softmax"(%x) {axis = -1 : i64, pyc.kernel = {covers = 1 : i64, family = "abacus", feeds = ["0|1"], knobs = ""}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

func.func @weights(%x: tensor<1x4x4x16xf32>) -> tensor<1x4x4x32xf32> {
  %w = "pyc.constant"() {value = dense<1.0> : tensor<1x1x16x32xf32>} : () -> tensor<1x1x16x32xf32>
  // expected-error @+1 {{pyc.kernel: expected a constant of (16, 31) as w, got (16, 32)}}
  %0 = "pyc.conv2d"(%x, %w) {layout = "NHWC", pyc.kernel = {family = "conv", covers = 1 : i64, feeds = ["0|1,2,3", "1|3"], knobs = "DirectConv(images=1, rows=ConvAxis(size=4), columns=ConvAxis(size=4), channels=16, filters=31)"}} : (tensor<1x4x4x16xf32>, tensor<1x1x16x32xf32>) -> tensor<1x4x4x32xf32>
  return %0 : tensor<1x4x4x32xf32>
}
