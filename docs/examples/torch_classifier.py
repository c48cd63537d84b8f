"""An image classifier from PyTorch.

Trained on scikit-learn's scans of handwritten digits, compiled for any number of images, and asked
about images that it has not seen.
"""

import torch
from sklearn.datasets import load_digits

import pyc_mlir
from pyc_mlir import TensorSpec

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, 32, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(512, 10),
)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(60):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[:1500]), labels[:1500]).backward()
    optimizer.step()

program = pyc_mlir.compile(model.eval(), (TensorSpec("f32", "batch", 1, 8, 8),))
found = program(images[1500:]).argmax(1)
assert (found == digits.target[1500:]).mean() > 0.9
assert program(images[1500:1501]).argmax() == found[0]
