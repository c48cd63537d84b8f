"""The suite `pack`: offsets for intervals."""
