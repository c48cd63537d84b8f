"""Programs as terms: what the elements of tensors are, so that equal functions are equal terms."""
