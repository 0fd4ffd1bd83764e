"""Paired t tests over seeds, and the table of differences between the best setting and each other one."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from raylfl.core.arrays import Floats
from raylfl.diagnostics.metric_names import is_percent
from raylfl.errors import BadValue
from raylfl.report.derived import BEST, Facet, best_setting, grows, recent, score, tail
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import axis_name, last_text, number

LEVEL = 0.95  # of confidence intervals
ALPHA = 0.05  # of tests
POWER = 0.8  # with which a test is to find a difference
MOST_SEEDS = 10_000
NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)  # Gauss quadrature on [-1, 1], of the power
DIVERGED = "diverged"


@dataclass(frozen=True)
class ConfidenceInterval:
    """An estimate and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high


def seeds_needed(difference: float, std: float) -> int | None:
    """The smallest number of seeds with which a paired two-sided t test detects a mean difference with power POWER.

    std: the standard deviation of the difference over seeds. The power is that of a noncentral t.
    None if the difference is 0, or if MOST_SEEDS seeds do not suffice.
    """
    if difference == 0 or std == 0:
        return 2 if difference else None
    counts, effect = range(2, MOST_SEEDS + 1), abs(difference) / std
    needed = bisect_left(counts, POWER, key=lambda seeds: _power(effect, seeds))  # the power grows with the seeds
    return counts[needed] if needed < len(counts) else None


@dataclass(frozen=True)
class PairedTest:
    """A paired t test over seeds.

    difference: the mean over seeds of ours - theirs, with its t interval. needed: `seeds_needed` for this mean and the
    spread of the differences.
    """

    difference: ConfidenceInterval
    needed: int | None


def paired_test(ours: Sequence[npt.ArrayLike], theirs: Sequence[npt.ArrayLike]) -> PairedTest:
    """The t test of the differences between the means of paired runs; the i-th runs of both have the same seed.

    A bootstrap of two or three seeds has intervals that are too short; t intervals keep their level for normal
    differences. Raises BadValue for fewer than two pairs.
    """
    differences = [float(finite_values(a).mean() - finite_values(b).mean()) for a, b in zip(ours, theirs, strict=True)]
    count = len(differences)
    if count < 2:
        raise BadValue("runs", got=count, need="at least two pairs")
    mean, std = float(np.mean(differences)), float(np.std(differences, ddof=1))
    half = std / math.sqrt(count) * float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return PairedTest(ConfidenceInterval(mean, mean - half, mean + half), seeds_needed(mean, std))


def _power(effect: float, seeds: int) -> float:
    """The power of a two-sided t test: P(|T| > b) for noncentral T, with the bound b of level ALPHA.

    T = (Z + shift) / S, with a normal Z and S^2 = chi^2/dof; the mean over the quantiles of S is a Gauss quadrature.
    (scipy's noncentral t is nan for large shifts.)
    """
    dof, shift = seeds - 1, effect * math.sqrt(seeds)
    bound = stats.t.ppf(1 - ALPHA / 2, dof) * np.sqrt(2 * special.gammaincinv(dof / 2, (NODES + 1) / 2) / dof)
    return float(WEIGHTS @ (special.ndtr(shift - bound) + special.ndtr(-shift - bound))) / 2


def finite_values(values: npt.ArrayLike) -> Floats:
    """The values as float64 [n]. Raises BadValue without values, and for non-finite ones."""
    data = np.asarray(values, dtype=np.float64).ravel()
    if not len(data) or not np.isfinite(data).all():
        need = "at least one, all finite (a diverged run has no mean)"
        raise BadValue("values", got=f"{len(data)} values", need=need)
    return data


def paired(parts: Sequence[Facet], metric: str, last: int) -> ReportTable | None:
    """The table of differences between the best setting of each scenario and each other setting, paired by seed.

    A scenario whose best setting diverged has no rows; None if no pair has two seeds in common.
    """
    rows = [row for part in parts for row in _of_scenario(part, metric, last)]
    if not rows:
        return None
    columns = [
        Column("pair", "pair"),
        Column("difference", f"{axis_name(metric)}, difference", lambda found: _text(found, metric), numeric=True),
        Column("seeds", "seeds", numeric=True),
        Column("ahead", "ahead"),
        Column("needed", "seeds needed", lambda count: "> 10\u2009000" if count is None else str(count), numeric=True),
    ]
    caption = (
        f"Best setting minus each other one: means over {last_text(last)}, paired by seed, with the 95 % interval of a "
        "paired t test. Open: the interval contains 0. Seeds needed: with which this test finds a difference of this "
        "size and spread in 80 % of all experiments."
    )
    return ReportTable("paired", caption, columns, rows)


def _of_scenario(part: Facet, metric: str, last: int) -> list[dict[str, Any]]:
    best, rows = best_setting(part.groups, metric, last), []
    if not np.isfinite(score(best, metric, last)):
        return []
    for other in part.groups:
        if other is best:
            continue
        ours, theirs = _shared(best, other, metric, last)
        if len(ours) < 2:
            continue
        common = {run.seed for run in best.runs} & {run.seed for run in other.runs}
        seeds = f"{len(ours)} of {len(common)}" if len(ours) < len(common) else str(len(ours))
        row: dict[str, Any] = {"block": part.label, "pair": f"{part.names[best]} − {part.names[other]}", "seeds": seeds}
        if np.isfinite(np.concatenate(theirs)).all():
            test = paired_test(ours, theirs)
            ahead = test.difference.low > 0 if grows(part.groups, metric) else test.difference.high < 0
            row |= {"difference": test.difference, "needed": test.needed}
        else:
            ahead, row = True, row | {"difference": DIVERGED}
        rows.append(row | {"ahead": part.names[best] if ahead else "open"})
    return rows


def _shared(a: Group, b: Group, metric: str, last: int) -> tuple[list[Floats], list[Floats]]:
    """The values in the last rounds for each common seed: (one array per seed for a, one array per seed for b).

    Both arrays of a seed have the rounds that its two runs share; all selected rounds if the run of b diverged, or with
    BEST. A seed without such a round is left out.
    """
    ours, theirs, others = list[Floats](), list[Floats](), {run.seed: run for run in b.runs}
    for run in a.runs:
        if (other := others.get(run.seed)) is None:
            continue
        values, others_values = tail(run, metric, last), tail(other, metric, last)
        if last != BEST and np.isfinite(others_values).all():
            here, there = recent(run, metric, last), recent(other, metric, last)
            _, first, second = np.intersect1d(run.rounds[here], other.rounds[there], return_indices=True)
            values, others_values = values[first], others_values[second]
        if len(values):
            ours.append(values)
            theirs.append(others_values)
    return ours, theirs


def _text(found: ConfidenceInterval | str, metric: str) -> str:
    """A difference with its interval: `+1.23 [+0.80, +1.70]` (accuracies in percentage points), or `diverged`."""
    if isinstance(found, str):
        return found
    values = found.mean, found.low, found.high
    mean, low, high = (f"{100 * v:+.2f}" if is_percent(metric) else f"{'+' * (v > 0)}{number(v, 3)}" for v in values)
    return f"{mean} [{low}, {high}]"
