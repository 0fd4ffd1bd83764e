"""`python -m benchmarks peers`: other platforms' own workloads in raylfl, in their releases and in a plain loop."""
