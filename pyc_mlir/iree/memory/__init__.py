"""PyC's memory plans in IREE's stream phase: versions, budgets, the arena entry."""
