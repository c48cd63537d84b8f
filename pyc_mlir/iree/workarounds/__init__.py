"""Rewrites around what the pinned IREE release does otherwise than a program says."""
