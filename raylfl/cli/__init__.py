"""The command line."""

from raylfl.cli.parser import main

__all__ = ["main"]
