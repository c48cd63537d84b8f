"""The memory planner's core: which task runs when, what is computed again, what lies where.

No MLIR in here. A `PlanningProblem` (tasks and buffers) becomes a `SchedulePlan` (waves,
recomputations, offsets); `validate` checks a plan independently of whoever made it. Adapters
translate pyc IR and IREE's stream IR into problems and plans back into programs.
"""
