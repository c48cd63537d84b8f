// Every fault of a pipeline is refused, with a caret, before anything runs (the input would fail).
// RUN: not pyc-opt %s --pass-pipeline='builtin.module(canonicalise)' 2>&1 | filecheck %s --check-prefix PASS
// RUN: not pyc-opt %s --pass-pipeline='func.func(cse{a=1})' 2>&1 | filecheck %s --check-prefix NONE
// RUN: not pyc-opt %s --pass-pipeline='canonicalize{max-iteratoins=1}' 2>&1 | filecheck %s --check-prefix OPTION
// RUN: not pyc-opt %s --pass-pipeline='canonicalize{max-iterations=many}' 2>&1 | filecheck %s --check-prefix VALUE
// RUN: not pyc-opt %s --pass-pipeline='func.func(convert-pyc-to-linalg)' 2>&1 | filecheck %s --check-prefix ANCHOR
// RUN: not pyc-opt %s --pass-pipeline='builtin.module(affine-loop-unroll)' 2>&1 | filecheck %s --check-prefix NATIVE
// RUN: not pyc-opt %s --pass-pipeline='func.func(sparsifier)' 2>&1 | filecheck %s --check-prefix WHOLE
// RUN: not pyc-opt %s --pass-pipeline='builtin.module(cse' 2>&1 | filecheck %s --check-prefix OPEN
// RUN: not pyc-opt %s --pass-pipeline='cse,' 2>&1 | filecheck %s --check-prefix EMPTY

// PASS: pass pipeline:1:16: error: unknown pass 'canonicalise'; did you mean 'canonicalize'?
// PASS-NEXT: builtin.module(canonicalise)
// PASS-NEXT: {{^                 \^$}}
// NONE: pass pipeline:1:15: error: pass 'cse' has no option 'a'
// OPTION: 1:14: error: pass 'canonicalize' has no option 'max-iteratoins'; did you mean 'max-iterations'?
// VALUE: 1:29: error: option 'max-iterations' of 'canonicalize': expected an integer (the default is 10), got 'many'
// ANCHOR: 1:11: error: pass 'convert-pyc-to-linalg' runs on builtin.module, not inside 'func.func'
// NATIVE: 1:16: error: pass 'affine-loop-unroll' runs on 'func.func', not on 'builtin.module'
// WHOLE: 1:11: error: pipeline 'sparsifier' runs on 'builtin.module', not on 'func.func'
// OPEN: 1:15: error: '(' is never closed
// EMPTY: 1:5: error: expected the name of a pass or an anchor, got the end of the pipeline

this is not MLIR
