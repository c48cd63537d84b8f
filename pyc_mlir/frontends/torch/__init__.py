"""PyTorch programs as pyc programs: `torch.export` graphs, node by node."""
