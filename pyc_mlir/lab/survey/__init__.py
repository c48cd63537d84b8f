"""Surveys: measuring what a database lacks of programs, and how noisy a machine is."""
