"""The seam that every choice goes through, policies, recipes, and contracts."""
