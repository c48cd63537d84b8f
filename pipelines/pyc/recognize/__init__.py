"""Composite ops that are spelled out in primitive ones: found, confirmed, replaced."""
