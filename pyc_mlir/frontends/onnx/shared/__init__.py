"""The nodes and windows that ONNX handlers work with."""
