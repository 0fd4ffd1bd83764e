"""Whose upload arrives: one kind of link a file."""

from raylfl.heterogeneity.links.base import LINKS, Link

__all__ = ["LINKS", "Link"]
