"""A limit on what the interpolations of a config expand to: forty lines `x1: ${x0}${x0}` would fill any memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from raylfl.errors import BadConfig

MOST = 1_000_000  # largest number of characters and values of an expanded config
INNERMOST = re.compile(r"\$\{([^{}]*)\}")
WORD = re.compile(r"[^\s$:,'\"\[\]()=]+")  # what may be a dotted path within an interpolation
BY_PATH = {"oc.select", "oc.deprecated", "oc.dict.keys", "oc.dict.values"}  # resolvers whose argument is a path
INNER = "\0"  # stands for an interpolation within another one
KeyPath = tuple[str, ...]


def refuse_expansion(config: Mapping[str, Any]) -> None:
    """Raises BadConfig if the interpolations of a config expand to more than MOST characters and values.

    An upper bound: each word of an interpolation that is a path in the config counts as the whole value there, and
    `${a.${b}}` as the whole of `a`. Also raises BadConfig for `${${b}}`, whose value may be any part of the config, and
    for values that refer to themselves.
    """
    sizes: dict[KeyPath, int | None] = {}  # None: not known yet

    def size(path: KeyPath) -> int:
        if path in sizes:
            if (cached := sizes[path]) is None:
                raise BadConfig(f"{'.'.join(path)}: an interpolation refers to itself, or to a part that contains it")
            return cached
        sizes[path], value = None, _at(config, path)
        if isinstance(value, (Mapping, list)):
            keys = value if isinstance(value, Mapping) else range(len(value))
            total = 1 + sum(size((*path, str(key))) for key in keys)
        else:
            total = len(str(value)) + sum(map(size, _targets(config, str(value), path)))
        if total > MOST:
            raise BadConfig(f"{'.'.join(path)}: its interpolations expand to more than {MOST:,} characters")
        sizes[path] = total
        return total

    try:
        size(())
    except RecursionError:
        raise BadConfig("too many interpolations refer to one another") from None


def _targets(config: Mapping[str, Any], text: str, path: KeyPath) -> Iterator[KeyPath]:
    """Yields the paths of the values to which the interpolations in the text at `path` may refer."""
    while match := INNERMOST.search(text):
        text = text[: match.start()] + INNER + text[match.end() :]
        resolver, _, arguments = match[1].rpartition(":")
        for k, word in enumerate(WORD.findall(arguments)):
            up = len(word) - len(word.lstrip("."))
            keys = tuple(key for key in word.split(".") if key)
            fixed = tuple(takewhile(lambda key: INNER not in key, keys))
            if keys and not fixed and (not resolver or (k == 0 and resolver.strip() in BY_PATH)):
                raise BadConfig(f"{'.'.join(path)}: ${{${{...}}}} is refused, as it may be any part of the config")
            target = (*(path[: len(path) - up] if up else ()), *fixed)
            if fixed and _at(config, target) is not None:
                yield target


def _at(config: Any, path: KeyPath) -> Any:
    for key in path:
        if isinstance(config, Mapping):
            config = config.get(key)
        elif isinstance(config, list) and key.isdecimal() and int(key) < len(config):
            config = config[int(key)]
        else:
            return None
    return config
