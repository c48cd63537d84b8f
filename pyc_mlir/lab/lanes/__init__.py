"""Lanes: which recipes are in use, and the conditions that a recipe meets to get there."""
