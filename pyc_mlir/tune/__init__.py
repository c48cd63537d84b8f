"""Searching for better choices: spaces of configurations, strategies, verdicts on measurements."""
