// What was expected and did not come, and what came unexpected, are errors.
// RUN: not pyc-opt %s --split-input-file --verify-diagnostics 2>&1 | filecheck %s

// CHECK: error: expected error "nothing of the kind" was not produced
// CHECK-NEXT: {{expected-error}} @+1
func.func @missing() {
  // expected-error @+1 {{nothing of the kind}}
  return
}

// -----

// CHECK: error: unexpected error: use of undeclared SSA value name
func.func @unexpected() -> f32 {
  return %missing : f32
}
