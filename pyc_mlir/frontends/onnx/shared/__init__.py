"""What ONNX handlers work with: nodes and windows."""
