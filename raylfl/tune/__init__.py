"""Sweeps: many runs over a space of config keys, on Ray Tune."""
