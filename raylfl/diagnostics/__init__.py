"""Diagnostics from the papers, computed from a round: objective inconsistency, gradient diversity."""
