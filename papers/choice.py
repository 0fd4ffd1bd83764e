"""The selection of an experiment's cells on the command line: `--only task=mnist-* --only steps=5,20`."""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raylfl.errors import BadConfig


@dataclass(frozen=True)
class CellChoice:
    """A selection of an experiment's cells by patterns for their values.

    patterns: key -> patterns with the wildcards of file names, one of which the text of the value (`plain`) matches.
    """

    patterns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def keeps(self, **cell: Any) -> bool:
        """Whether the cell with these keys and values is selected."""
        return all(self._matches(key, plain(cell[key])) for key in self.patterns if key in cell)

    def _matches(self, key: str, value: str) -> bool:
        return any(fnmatch.fnmatchcase(value, pattern) for pattern in self.patterns[key])

    def check(self, cells: Iterable[Mapping[str, Any]]) -> None:
        """Raise BadConfig if, for some key with patterns, none of the cells' values matches."""
        cells = list(cells)
        for key in self.patterns:
            values = dict.fromkeys(plain(cell[key]) for cell in cells if key in cell)
            if values and not any(self._matches(key, value) for value in values):
                raise BadConfig(f"--only {key}={','.join(self.patterns[key])}: no cell; there are {', '.join(values)}")


def choice(words: Sequence[str], keys: Sequence[str], name: str) -> CellChoice:
    """The selection that the words `key=value,value` describe. Raises BadConfig for a key that is none of `keys`."""
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
