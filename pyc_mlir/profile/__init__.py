"""Time per op: where the time of a call goes, measured or predicted, and its views."""
