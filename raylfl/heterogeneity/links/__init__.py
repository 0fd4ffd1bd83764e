"""Link processes, which determine the uploads that the server receives; one file for each process."""

from raylfl.heterogeneity.links.base import LINKS, Link

__all__ = ["LINKS", "Link"]
