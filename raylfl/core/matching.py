"""Names that patterns with wildcards match."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from raylfl.errors import BadValue


def matching(patterns: Sequence[str], names: Iterable[str], key: str, need: str) -> set[str]:
    """The names that a pattern matches; the name of a layer matches everything in it.

    Raises BadValue for the option `key` if a pattern matches no name. need: what a pattern must be, for the message.
    """
    names, matches = list(names), set[str]()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        if not matched:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            hint = f"the nearest are {', '.join(near)}" if near else "there are none"
            raise BadValue(key, got=pattern, need=need, hint=hint)
        matches |= matched
    return matches
