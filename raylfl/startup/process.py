"""The set-up of raylfl's own processes: the command line and the actors."""

from __future__ import annotations

from raylfl.startup import collector, lazy_imports, malloc


def set_up() -> None:
    """Applies `collector`, `lazy_imports` and `malloc`, before Lightning is imported.

    The caller calls `collector.as_usual` when the imports are done.
    """
    collector.rarely()
    lazy_imports.install()
    malloc.keep()
