"""The pyc dialect in MLIR: bindings, types and attributes, the builder, the interpreter, op ids."""
