"""Diagnostics of a round from the papers: objective inconsistency and gradient diversity."""
