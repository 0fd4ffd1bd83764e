"""Paired t tests over seeds, with their intervals and the number of seeds that a difference needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from raylfl.core.arrays import Floats
from raylfl.errors import BadValue

LEVEL = 0.95  # of confidence intervals
ALPHA = 0.05  # of tests
POWER = 0.8  # with which a test is to find a difference
MOST_SEEDS = 10_000
NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)  # Gauss quadrature on [-1, 1], of the power


@dataclass(frozen=True)
class Interval:
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

    difference: Interval
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
    return PairedTest(Interval(mean, mean - half, mean + half), seeds_needed(mean, std))


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
