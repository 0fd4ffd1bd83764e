"""Solvers for the min-norm point of a convex hull, from a Gram matrix or from many long vectors."""
