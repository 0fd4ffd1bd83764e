"""The contract of reproductions: a paper's figure or table has a name, runs, and claims to check.

A `PaperResult` gets the runs of its settings from the `RunCache` and returns `Findings`: tables with our numbers beside
the published ones, a verdict for each of the paper's claims, and figures. The modules of this package, one a
paper, register theirs.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from raylfl.errors import BadConfig
from raylfl.registry import Registry
from raylfl.report.derived import Stat
from raylfl.report.tables import Table
from raylfl.report.wording import count_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raylfl.reproduce.run_cache import RunCache

EXPERIMENTS: Registry[PaperResult] = Registry("experiments", "raylfl.reproduce")
SCALES = ("smoke", "paper")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether it holds (None: not decided here), and the numbers that decide.

    remark: what is known about a claim that does not hold.
    """

    text: str
    holds: bool | None
    evidence: str
    remark: str = ""


@dataclass(frozen=True)
class Findings:
    """The outcome of a reproduction. figures: by file name, without ending. notes: for the reader."""

    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    notes: Sequence[str] = ()


class PaperResult(ABC):
    """A figure or table of a paper. The first line of a subclass's docstring says what it shows.

    scales: at which it can be run; none where it is exact, small and always run whole. choices: the keys by which
    `--only` chooses from its cells. shares: the name under which its runs lie, where other experiments have the same.
    """

    scales: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[str | None] = None

    @abstractmethod
    def run(self, cache: RunCache) -> Findings:
        """Make the runs and compare. Raises BadConfig (DataMissing) before the first of them starts."""


def find(name: str) -> PaperResult:
    """The experiment of that name; raises BadConfig naming the nearest."""
    names = EXPERIMENTS.names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        raise BadConfig(
            f"no experiment {name}; "
            + (f"did you mean {near[0]}?" if near else "`raylfl reproduce --list` shows what there is")
        )
    return EXPERIMENTS.get(name).cls()


def published(text: str) -> Stat:
    """A published `78.43±2.46` (per cent, the std may be missing) as a statistic of fractions."""
    mean, _, std = text.partition("±")
    return Stat(float(mean) / 100, float(std) / 100 if std else math.nan, 1, 1)


def cost_or_dash(value: float) -> str:
    """A cost for people, `–` where it is not finite: the goal was never reached."""
    return count_text(value) if math.isfinite(value) else "–"
