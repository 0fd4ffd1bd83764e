"""JSON parsing that raises ValueError for every fault, duplicate keys and too deep nesting included."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str) -> Any:
    """The value of a JSON text, as plain Python objects. Raises ValueError that names the fault."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)} occurs twice")
    return content
