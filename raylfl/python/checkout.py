"""The repository around an imported raylfl: `papers/` and the ledger in `results/` are not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

from raylfl.errors import BadConfig


def find_checkout(feature: str) -> Path:
    """The root of the checkout from which raylfl is imported.

    `papers` is importable from then on, here and in the processes that are started. Raises BadConfig, with the feature
    that needs the checkout, if raylfl is imported from elsewhere.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "papers" / "command.py").is_file():
        raise BadConfig(
            f"{feature} needs the repository: the papers' experiments and the ledger are not part of the installed "
            "package; clone it and `pip install --editable .` there"
        )
    if sys.path[:1] != [str(root)]:
        sys.path.insert(0, str(root))  # before a module of the user's with this name
    return root
