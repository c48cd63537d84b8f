"""The base of all lowering rules: sizes as monomials, the state of a conversion, structured ops."""
