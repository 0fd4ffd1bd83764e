"""The interface of an experiment, which reproduces a figure or table of a paper, and the choice of its cells."""

from __future__ import annotations

import fnmatch
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from raylfl.components.registry import Registry
from raylfl.config.groups.records import LoggingConfig
from raylfl.errors import BadConfig, did_you_mean
from raylfl.report.tables import ReportTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from papers.ledger import Row
    from papers.run_cache import RunCache

EXPERIMENTS: Registry[PaperResult] = Registry("experiments", "papers")
SCALES = ("smoke", "paper")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the verdict (None: open), our numbers, why it does not hold, and the paper's numbers."""

    text: str
    holds: bool | None
    evidence: str
    remark: str = ""
    published: str = ""

    @property
    def ours(self) -> str:
        return self.evidence + (f" ({self.remark})" if self.remark else "")

    @property
    def result(self) -> str:
        published = f"; published: {self.published}" if self.published else ""
        return self.evidence + published + self.ours.removeprefix(self.evidence)


@dataclass(frozen=True)
class Findings:
    """The outcome of an experiment; figures: file name without ending -> figure."""

    tables: Sequence[ReportTable] = ()
    claims: Sequence[Claim] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()


class PaperResult(ABC):
    """An experiment: a figure or table of a paper; the first line of a subclass's docstring is its summary.

    scales: at which it can be run; empty if it has one size only. choices: the keys by which `--only` selects cells.
    shares: the name of the folder of its runs, if other experiments use them. time: of the whole experiment, if long.
    """

    scales: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[str | None] = None
    time: ClassVar[str] = ""

    @abstractmethod
    def run(self, cache: RunCache) -> Findings:
        """Make the missing runs and compare all runs with the paper; a wrong choice is refused before a run starts."""

    def whole(self) -> int | None:
        """The number of runs at scale `paper`; None if the experiment cannot be published in part."""
        return None

    def missing(self, rows: Sequence[Row]) -> list[str]:
        """The parts of the whole experiment that the ledger's rows lack, as phrases."""
        return []


def find(name: str) -> PaperResult:
    """The experiment of this name. Raises BadConfig, with the nearest known name, if the name is unknown."""
    names = EXPERIMENTS.names()
    if name not in names:
        hint = did_you_mean(name, names, "`raylfl reproduce --list` shows all names")
        raise BadConfig(f"no experiment {name}; {hint}")
    return EXPERIMENTS.get(name).cls()


def place(name: str, experiment: PaperResult, scale: str) -> Path:
    """The folder of an experiment's results; name: its name, or that of the runs that it shares with others."""
    folder = LoggingConfig().folder / "reproduce" / name
    return folder / scale if experiment.scales else folder


@dataclass(frozen=True)
class CellChoice:
    """A selection of cells; patterns: key -> patterns, one of which the text of its value (`plain`) matches."""

    patterns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def keeps(self, **cell: Any) -> bool:
        return all(self._matches(key, plain(cell[key])) for key in self.patterns if key in cell)

    def _matches(self, key: str, value: str) -> bool:
        return any(fnmatch.fnmatchcase(value, pattern) for pattern in self.patterns[key])

    def check(self, cells: Iterable[Mapping[str, Any]]) -> None:
        """Raise BadConfig if some key's patterns match none of the cells' values."""
        cells = list(cells)
        for key in self.patterns:
            values = dict.fromkeys(plain(cell[key]) for cell in cells if key in cell)
            if values and not any(self._matches(key, value) for value in values):
                raise BadConfig(f"--only {key}={','.join(self.patterns[key])}: no cell; there are {', '.join(values)}")


def choice(words: Sequence[str], keys: Sequence[str], name: str) -> CellChoice:
    """The selection by words `key=value,value`. Raises BadConfig for a key that is none of `keys`."""
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
