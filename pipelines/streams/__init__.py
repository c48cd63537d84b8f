"""The door to IREE's stream IR, and what readers of it ask: sizes, ranges, declared facts."""
