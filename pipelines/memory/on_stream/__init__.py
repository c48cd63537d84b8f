"""Memory planning on IREE's stream IR, where sizes and lifetimes are final."""
