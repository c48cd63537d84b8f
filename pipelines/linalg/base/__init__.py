"""What all lowering rules use: sizes as monomials, the state of a conversion, structured ops."""
