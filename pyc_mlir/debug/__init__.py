"""Finding out why: replay, diff, bisection of decisions, reduction of modules."""
