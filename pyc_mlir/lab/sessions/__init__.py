"""Measuring sessions: candidates of a program or of a kernel's work, timed in fresh processes."""
