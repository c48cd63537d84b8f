"""Evidence: measurements that programs share, and what is decided by them."""
