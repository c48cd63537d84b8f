"""What handlers of ATen operators work with: nodes, element types, symbolic sizes."""
