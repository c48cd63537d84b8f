"""What suites share, and their reports as tables and pages."""
