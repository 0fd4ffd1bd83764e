"""The interface of an experiment, which reproduces one figure or table of a paper.

A `PaperResult` gets the runs of its settings from the `RunCache` and returns `Findings`: tables with our numbers beside
the published ones, a verdict on each of the paper's claims, and figures. Each module of this package registers the
results of one paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from raylfl.components.registry import Registry
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
    """A claim of the paper and the verdict on it.

    holds: whether the claim holds; None if the runs do not decide it. evidence: our numbers behind the verdict. remark:
    an explanation of a claim that does not hold. published: the paper's numbers, if the claim has some.
    """

    text: str
    holds: bool | None
    evidence: str
    remark: str = ""
    published: str = ""

    @property
    def ours(self) -> str:
        """The evidence with the remark."""
        return self.evidence + (f" ({self.remark})" if self.remark else "")

    @property
    def result(self) -> str:
        """The evidence with the paper's numbers and the remark."""
        published = f"; published: {self.published}" if self.published else ""
        return self.evidence + published + self.ours.removeprefix(self.evidence)


@dataclass(frozen=True)
class Findings:
    """The outcome of an experiment: tables, claims, figures and notes.

    figures: file name without ending -> figure. notes: remarks for the reader.
    """

    tables: Sequence[ReportTable] = ()
    claims: Sequence[Claim] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()


class PaperResult(ABC):
    """An experiment: a figure or table of a paper; the first line of a subclass's docstring is its summary.

    scales: the scales at which it can be run, `smoke` and `paper`; empty if it is small and has one size only. choices:
    the keys by which `--only` selects cells of the table. shares: the name of the folder of its runs, if other
    experiments use the same runs. time: the estimated time of the whole experiment in words, if it is long.
    """

    scales: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[str | None] = None
    time: ClassVar[str] = ""

    @abstractmethod
    def run(self, cache: RunCache) -> Findings:
        """Make the missing runs and compare all runs with the paper.

        Raises BadConfig for a wrong config or choice, and DataMissing if data are missing, before a run starts.
        """

    def whole(self) -> int | None:
        """The number of runs of the whole experiment at scale `paper`; None if it cannot be published in part."""
        return None

    def missing(self, rows: Sequence[Row]) -> list[str]:
        """The parts of the whole experiment that are missing in the ledger's rows, as phrases; empty if none is."""
        return []


def find(name: str) -> PaperResult:
    """The experiment of this name. Raises BadConfig, with the nearest known name, if the name is unknown."""
    names = EXPERIMENTS.names()
    if name not in names:
        hint = did_you_mean(name, names, "`raylfl reproduce --list` shows all names")
        raise BadConfig(f"no experiment {name}; {hint}")
    return EXPERIMENTS.get(name).cls()
