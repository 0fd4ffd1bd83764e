"""The selection of an experiment's cells on the command line: `--only task=mnist-* --only steps=5,20`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raylfl.errors import BadConfig


@dataclass(frozen=True)
class CellChoice:
    """A selection of an experiment's cells by patterns for their values.

    patterns: key -> patterns with the wildcards of file names (`mnist-*`). A cell is selected if, for each of these
    keys, the text of its value (`plain`) matches at least one pattern. seen: key -> text -> whether it matches, for the
    values of all cells that `keeps` was called with.
    """

    patterns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seen: dict[str, dict[str, bool]] = field(default_factory=dict, compare=False)

    def keeps(self, **cell: Any) -> bool:
        """Whether the cell with these keys and values is selected; stores the values in `seen`."""
        for key in cell.keys() & self.patterns.keys():
            value = plain(cell[key])
            selected = any(fnmatch.fnmatchcase(value, pattern) for pattern in self.patterns[key])
            self.seen.setdefault(key, {})[value] = selected
        return all(self.seen[key][plain(value)] for key, value in cell.items() if key in self.patterns)

    def check_matches(self) -> None:
        """Raise BadConfig if, for some key with patterns, none of the values in `seen` matches."""
        for key, values in self.seen.items():
            if not any(values.values()):
                raise BadConfig(f"--only {key}={','.join(self.patterns[key])}: no cell; there are {', '.join(values)}")


def choice(words: Sequence[str], keys: Sequence[str], name: str) -> CellChoice:
    """The selection that the words `key=value,value` describe.

    keys: the keys of the experiment; name: its name. Raises BadConfig for any other key.
    """
    patterns: dict[str, list[str]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or key not in keys:
            choices = ", ".join(keys) or "nothing: its settings belong together"
            raise BadConfig(f"--only {word}: {name} needs key=value,value; its keys: {choices}")
        patterns.setdefault(key, []).extend(value.strip().lower() for value in values.split(","))
    return CellChoice(patterns)


def plain(value: Any) -> str:
    """A value as text for `--only`: `MNIST, LeNet-5` is mnist-lenet-5, 0.1 is 0.1, None is none."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
