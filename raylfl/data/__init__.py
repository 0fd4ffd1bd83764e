"""Shipped data: image sets read from disk, the bundled digits, and synthetic problems with known optima."""
