"""Families of convolutions and pooling: kernels whose rows are windows of images."""
