"""What a function read from outside of its arguments, and whether that has changed since."""
