"""Products of f32 computed in fewer bits, with a check of each tile."""
