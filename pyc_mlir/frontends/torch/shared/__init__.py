"""The nodes, element types and symbolic sizes that handlers of ATen operators work with."""
