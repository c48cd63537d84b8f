"""The suites: what is measured of compiles, calls, memory, servers and estimates."""
