// RUN: pyc-opt --list-passes | filecheck %s --check-prefix PASSES
// RUN: pyc-opt --show-dialects | filecheck %s --check-prefix DIALECTS
// RUN: pyc-opt --help | filecheck %s --check-prefix HELP
// RUN: pyc-opt --version | filecheck %s --check-prefix VERSION
// RUN: not pyc-opt --spilt-input-file 2>&1 | filecheck %s --check-prefix FLAG
// RUN: not pyc-opt no/such/file.mlir 2>&1 | filecheck %s --check-prefix FILE
// RUN: cat %s | pyc-opt - --cse | filecheck %s --check-prefix STDIN
// RUN: cat %s | not pyc-opt --pass-pipeline=cse,, 2>&1 | filecheck %s --check-prefix PIPE

// PASSES: PyC passes (on builtin.module):
// PASSES: --convert-pyc-to-linalg
// PASSES: Native passes
// PASSES: --affine-loop-tile (func.func)
// PASSES-NEXT: cache-size=512
// PASSES: --canonicalize (any)
// PASSES: max-iterations=10
// PASSES: --cse (any)
// DIALECTS: Available Dialects: {{.*}}linalg, {{.*}}pyc, {{.*}}vector
// HELP: usage: pyc-opt
// HELP: --pass-pipeline=TEXT
// HELP: --verify-diagnostics[=LEVEL]
// VERSION: pyc-opt {{[0-9.a-z]+}} (MLIR
// FLAG: error: --spilt-input-file: expected a flag or a pass; did you mean '--split-input-file'?
// FILE: error: no/such/file.mlir: expected a file to read, got: No such file or directory
// STDIN: module
// PIPE: pass pipeline:1:5: error
