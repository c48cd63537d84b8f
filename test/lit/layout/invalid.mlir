// Options that are none.
// RUN: not pyc-opt %s --pyc-layout='target=tpu' 2>&1 | filecheck %s --check-prefix TARGET
// RUN: not pyc-opt %s --pyc-layout='layout=NHWC' 2>&1 | filecheck %s --check-prefix OPTION

// TARGET: `target`: expected one of cpu, {{.*}}, got 'tpu'
// OPTION: pass 'pyc-layout' has no option 'layout'
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
