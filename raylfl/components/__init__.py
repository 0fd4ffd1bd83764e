"""Components of a config: their options, registries, plug-ins, and reading of source without importing it."""
