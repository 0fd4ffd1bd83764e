"""Quantities that the papers reason with, computed from a round: inconsistency, gradient diversity."""
