"""The common part of suites, and their reports as tables and pages."""
