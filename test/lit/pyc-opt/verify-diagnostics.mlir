// Errors, notes and regular expressions at every kind of place, in parts of a split file.
// RUN: pyc-opt %s --split-input-file --verify-diagnostics
// RUN: not pyc-opt %s --split-input-file 2>&1 | filecheck %s
// CHECK: error: use of undeclared SSA value name

func.func @next_line() -> f32 {
  // expected-error @+1 {{use of undeclared SSA value name}}
  return %missing : f32
}

// -----

// expected-note @below {{prior use here}}
func.func @pattern(%x: f32) -> f64 {
  // expected-error-re @+1 {{use of value '%x' expects {{different|another}} type}}
  return %x : f64
}

// -----

func.func @same_line() { return 1 } // expected-error {{expected operation name in quotes}}

// -----

func.func @above() -> f32 {
  return
  // expected-error @above {{has 0 operands, but enclosing function (@above) returns 1}}
}
