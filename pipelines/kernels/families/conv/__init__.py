"""Kernels over windows of images: convolutions, depthwise convolutions, pooling. All are NHWC."""
