"""A user's module that cannot be imported."""

raise RuntimeError("a bug at import")
