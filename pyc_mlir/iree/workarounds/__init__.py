"""Rewrites that avoid defects of the pinned IREE release."""
