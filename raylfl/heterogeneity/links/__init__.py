"""Links, which determine the uploads that are received; one file for each kind."""

from raylfl.heterogeneity.links.base import LINKS, Link

__all__ = ["LINKS", "Link"]
