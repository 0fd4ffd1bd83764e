"""Benchmarks of speed, as ratios of times measured in one run: `python -m benchmarks` (or `make bench`)."""
