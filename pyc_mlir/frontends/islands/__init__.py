"""Islands: single ONNX nodes that torch-mlir lowers to linalg, where PyC has no rule of its own."""
