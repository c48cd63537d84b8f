"""What the command lines share, and their drivers."""
