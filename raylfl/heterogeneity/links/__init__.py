"""Link processes, which determine the uploads that the server receives."""

from raylfl.heterogeneity.links.base import LINKS, Link

__all__ = ["LINKS", "Link"]
