"""The suites `strategies` and `tune-workers`: how searches converge, and how studies scale."""
