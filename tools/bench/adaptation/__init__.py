"""Plans for shapes beside one dynamic plan, and policies of the selector on simulated seconds."""
