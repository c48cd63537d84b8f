"""Identities, normal forms and constant folding."""
