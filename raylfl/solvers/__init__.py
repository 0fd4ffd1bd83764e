"""Numerics shared by algorithms: the min-norm point of a convex hull, for small and for long vectors."""
