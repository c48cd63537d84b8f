// RUN: pyc-opt %s --allow-unregistered-dialect --cse | filecheck %s
// RUN: not pyc-opt %s 2>&1 | filecheck %s --check-prefix ERROR

// ERROR: unregistered.mlir:[[# @LINE + 2]]:13: error: operation being parsed with an unregistered dialect
// CHECK: "unknown.op"() : () -> ()
"unknown.op"() : () -> ()
