"""Plans of a program for certain sizes of its dynamic dimensions."""
