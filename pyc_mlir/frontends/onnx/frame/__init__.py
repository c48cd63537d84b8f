"""What every ONNX handler works with: nodes, builders, symbolic sizes, shapes, windows."""
