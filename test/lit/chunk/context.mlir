// Mode and target of the whole run reach the pass; an option of the pass wins over them.
// RUN: pyc-opt %s --pyc-chunk --pyc-mode=memory_first --pyc-target=vulkan --pyc-log=%t.run -o %t.1
// RUN: pyc-opt %s --pyc-chunk='mode=memory_first target=vulkan' --pyc-mode=iree --pyc-log=%t.options -o %t.2
// RUN: diff %t.run %t.options
// RUN: diff %t.1 %t.2
// RUN: filecheck %s --input-file=%t.run
// RUN: pyc-opt %s --pyc-chunk --pyc-mode=iree --pyc-log=%t.none | filecheck %s --check-prefix WHOLE
// RUN: not pyc-opt %s --pyc-mode=fast 2>&1 | filecheck %s --check-prefix MODE
// RUN: not pyc-opt %s --pyc-target=tpu 2>&1 | filecheck %s --check-prefix TARGET

// CHECK: "mode memory_first"
// WHOLE-NOT: pyc.chunk
// MODE: --pyc-mode: expected one of latency_first, balanced, memory_first, iree, got 'fast'
// TARGET: target: expected one of cpu, {{.*}}, got 'tpu'
func.func @attention(%q: tensor<8x512x64xf32>, %k: tensor<8x512x64xf32>, %v: tensor<8x512x64xf32>) -> tensor<8x512x64xf32> {
  %0 = "pyc.attention"(%q, %k, %v) {scale = 0.125 : f64} : (tensor<8x512x64xf32>, tensor<8x512x64xf32>, tensor<8x512x64xf32>) -> tensor<8x512x64xf32>
  return %0 : tensor<8x512x64xf32>
}
