"""Real networks with random weights, under PyC and its peers."""
