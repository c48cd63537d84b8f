"""How each system runs a workload: PyC, plain IREE, onnxruntime, OpenVINO, JAX, torch."""
