"""Set-up of the processes of raylfl itself: the command line and the actors."""

from __future__ import annotations

from raylfl.startup import lazy_imports, malloc


def set_up() -> None:
    """Applies `lazy_imports` and `malloc`, before Lightning is imported."""
    lazy_imports.install()
    malloc.keep()
