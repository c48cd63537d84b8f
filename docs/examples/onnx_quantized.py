"""A quantized ONNX model.

Exported by PyTorch, quantized by onnxruntime, compiled from the file: integer products, as exact as
onnxruntime's own.
"""

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic

import pyc_mlir

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
example = (torch.randn(4, 64),)
proto = torch.onnx.export(model.eval(), example, dynamo=True).model_proto
proto.graph.ClearField("value_info")  # onnxruntime's quantizer finds the shapes itself
# Weights of 7 bits: on CPUs without VNNI onnxruntime's own sums of 8-bit products saturate.
quantize_dynamic(proto, "model.u8.onnx", reduce_range=True)

program = pyc_mlir.compile("model.u8.onnx")
session = onnxruntime.InferenceSession("model.u8.onnx", providers=["CPUExecutionProvider"])
x = np.random.default_rng(0).standard_normal((4, 64), np.float32)
wanted = session.run(None, {session.get_inputs()[0].name: x})[0]
assert np.abs(program(x) - wanted).max() < 1e-4
