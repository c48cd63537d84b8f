// Without an implicit module the input's own op is the root, and pipelines are anchored on it.
// RUN: pyc-opt %s --no-implicit-module --pass-pipeline='func.func(cse)' | filecheck %s
// RUN: not pyc-opt %s --no-implicit-module --pyc-decompose 2>&1 | filecheck %s --check-prefix PYC

// CHECK-NOT: module
// CHECK: func.func @f
// PYC: error: pass 'pyc-decompose' runs on builtin.module, not inside 'func.func'
func.func @f() {
  return
}
