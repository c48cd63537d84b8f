"""Record what a function read from outside of its arguments, and find what has changed since."""
