"""Importing ONNX models."""
