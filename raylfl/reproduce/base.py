"""The contract of reproductions: a paper's figure or table has a name, runs, and claims to check.

A `PaperResult` gets the runs of its settings from the `RunCache` and returns `Findings`: tables with our numbers beside
the published ones, a verdict on each of the paper's claims, and figures. Each module of this package registers the
results of one paper.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from raylfl.errors import BadConfig
from raylfl.registry import Registry
from raylfl.report.derived import Stat
from raylfl.report.tables import Table
from raylfl.report.wording import count_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raylfl.report.runs import RunRecord
    from raylfl.reproduce.run_cache import RunCache

EXPERIMENTS: Registry[PaperResult] = Registry("experiments", "raylfl.reproduce")
SCALES = ("smoke", "paper")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: its text, whether it holds (None: not decided here), and the numbers behind the verdict.

    remark: an explanation of a claim that does not hold.
    """

    text: str
    holds: bool | None
    evidence: str
    remark: str = ""


@dataclass(frozen=True)
class Findings:
    """The outcome of a reproduction: tables, claims, figures and notes.

    figures: file name without ending -> figure. notes: remarks for the reader.
    """

    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()


class PaperResult(ABC):
    """A figure or table of a paper; the first line of a subclass's docstring describes it.

    scales: the scales at which it can be run; none if it is small and always run as a whole. choices: the keys
    by which `--only` selects its cells. shares: the name of the folder of its runs, if other experiments share them.
    """

    scales: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[str | None] = None

    @abstractmethod
    def run(self, cache: RunCache) -> Findings:
        """Makes the runs and compares them. Raises BadConfig (DataMissing) before the first run starts."""

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        """The keys that identify a run in the ledger, from its config and the name of its folder.

        None if the run belongs to no cell of this experiment's table.
        """
        return {"run": name.rpartition("-s")[0] or name}

    def measures(self, run: RunRecord) -> dict[str, float | None]:
        """Numbers that a run's row in the ledger keeps besides its curve.

        They are computed from all rounds; the thinned curve in the row does not determine them.
        """
        return {}

    @property
    def stands_alone(self) -> bool:
        """Whether each cell can be published on its own."""
        return type(self).from_ledger is not PaperResult.from_ledger

    def from_ledger(self, folder: Path) -> Findings:
        """The findings, computed from the published runs in the ledger of this folder."""
        raise NotImplementedError


def find(name: str) -> PaperResult:
    """The experiment of this name. Raises BadConfig, with the nearest known name, if there is none."""
    names = EXPERIMENTS.names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        raise BadConfig(
            f"no experiment {name}; "
            + (f"did you mean {near[0]}?" if near else "`raylfl reproduce --list` shows all names")
        )
    return EXPERIMENTS.get(name).cls()


def published(text: str) -> Stat:
    """A published number such as `78.43±2.46` (in per cent, the std may be missing) as a statistic of fractions."""
    mean, _, std = text.partition("±")
    return Stat(float(mean) / 100, float(std) / 100 if std else math.nan, 1, 1)


def cost_or_dash(value: float) -> str:
    """A cost as text; `–` if it is not finite, because the goal was never reached."""
    return count_text(value) if math.isfinite(value) else "–"
