"""Searching for better choices: strategies, verdicts on measurements."""
