"""Suites on the compiler itself: compile time, replay, tools."""
