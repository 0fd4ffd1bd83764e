"""Set-up of the processes of raylfl itself: the command line and the actors."""

from __future__ import annotations

from raylfl.startup import collector, lazy_imports, malloc


def set_up() -> None:
    """Applies `collector`, `lazy_imports` and `malloc`, before Lightning is imported.

    `collector.as_usual` is to be called when the process begins to work.
    """
    collector.rarely()
    lazy_imports.install()
    malloc.keep()
