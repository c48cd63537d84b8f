"""Files, JSON and suggestions for misspelled names: helpers that every layer uses."""
