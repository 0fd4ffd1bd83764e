"""Runs: the round, workers, Ray, records."""
