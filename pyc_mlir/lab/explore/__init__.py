"""Path explorer: the legal executions of a program, and those that no other one beats."""
