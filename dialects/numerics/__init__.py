"""How far a correct program may be from the numpy reference: tolerances by rounding analysis."""
