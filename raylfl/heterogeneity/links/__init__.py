"""Links, which decide whose upload is received: one kind a file."""

from raylfl.heterogeneity.links.base import LINKS, Link

__all__ = ["LINKS", "Link"]
