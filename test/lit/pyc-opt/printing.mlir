// How the result is printed.
// RUN: pyc-opt %s --mlir-print-debuginfo | filecheck %s --check-prefix LOC
// RUN: pyc-opt %s --mlir-print-op-generic | filecheck %s --check-prefix GENERIC
// RUN: pyc-opt %s --mlir-elide-elementsattrs-if-larger=2 | filecheck %s --check-prefix ELIDE
// RUN: pyc-opt %s --verify-roundtrip | filecheck %s --check-prefix PLAIN
// RUN: pyc-opt %s --emit-bytecode -o %t.mlirbc && pyc-opt %t.mlirbc | filecheck %s --check-prefix PLAIN

// LOC: printing.mlir":[[# @LINE + 7]]:8)
// GENERIC: "arith.constant"()
// GENERIC: "func.return"
// ELIDE: dense_resource<__elided__>
// PLAIN: arith.constant dense<[1.0{{.*}}, 2.0{{.*}}, 3.0{{.*}}]>
// PLAIN-NOT: loc(
func.func @constant() -> tensor<3xf32> {
  %0 = arith.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  return %0 : tensor<3xf32>
}
