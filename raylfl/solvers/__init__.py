"""Numerics that algorithms share: the min-norm point of a convex hull, by three methods."""
