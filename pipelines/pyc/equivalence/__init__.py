"""Deciding whether two programs compute the same: proofs, counterexamples, or no answer."""
