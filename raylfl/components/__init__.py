"""Components of a config: their options, their registries, and plug-ins."""
