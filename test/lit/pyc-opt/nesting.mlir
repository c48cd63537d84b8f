// Text that nests too deeply would overflow the parser's stack: it is refused with a place.
// RUN: %python -c "print('module {' * 600 + '}' * 600)" > %t
// RUN: not pyc-opt %t 2>&1 | filecheck %s
// RUN: %python -c "print('\"\x28\x28\x5b' * 600)" > %t
// RUN: not pyc-opt %t 2>&1 | filecheck %s --check-prefix STRING
// RUN: pyc-opt /dev/null | filecheck %s --check-prefix EMPTY

// CHECK: 1:{{[0-9]+}}: error: expected at most 500 nested brackets
// STRING: error:
// EMPTY: module {
