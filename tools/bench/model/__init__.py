"""A user's own model under PyC and its peers."""
