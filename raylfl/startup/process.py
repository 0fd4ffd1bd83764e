"""How the command line and the actors set up their processes; a program that only imports raylfl is left alone."""

from __future__ import annotations

from raylfl.startup import lazy_imports, malloc


def set_up() -> None:
    """Before Lightning is imported: have that lean, and keep the memory that local steps free."""
    lazy_imports.install()
    malloc.keep()
