"""Memory planning: the packer, the planner core, and its adapters to pyc IR and to stream IR."""
