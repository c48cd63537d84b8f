// Options that are none.
// RUN: not pyc-opt %s --pyc-chunk='mode=fast' 2>&1 | filecheck %s --check-prefix MODE
// RUN: not pyc-opt %s --pyc-chunk='target=tpu' 2>&1 | filecheck %s --check-prefix TARGET
// RUN: not pyc-opt %s --pyc-chunk='parts=2' 2>&1 | filecheck %s --check-prefix PARTS

// MODE: option 'mode' of 'pyc-chunk': expected one of latency_first, balanced, memory_first or none, got 'fast'
// TARGET: `target`: expected one of cpu, {{.*}}, got 'tpu'
// PARTS: pass 'pyc-chunk' has no option 'parts'
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
