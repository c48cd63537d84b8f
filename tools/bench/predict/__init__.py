"""The suite `predict`: estimates of programs against what was measured."""
