"""Links from clients to the server, which determine the received uploads; one file for each kind."""

from raylfl.heterogeneity.links.base import LINKS, Link

__all__ = ["LINKS", "Link"]
