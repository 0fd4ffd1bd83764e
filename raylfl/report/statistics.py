"""Statistics for claims: means with bootstrap intervals, paired differences, equivalence, numbers of seeds.

A run is the series of its n measured values in a window of rounds; an experiment has one run per seed. Values of
neighbouring rounds are correlated. The bootstrap therefore resamples seeds and, within a seed, blocks of neighbouring
rounds (Kuensch 1989); t statistics use the effective number of independent values. With a single seed, an interval is
about the level of this run only, not about the results of other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from raylfl.core.arrays import Floats
from raylfl.errors import BadValue

LEVEL = 0.95  # of confidence intervals
ALPHA = 0.05  # of tests
POWER = 0.8  # with which a test is to find a difference
DRAWS = 2000  # resamples of the bootstrap
MOST_SEEDS = 10_000
QUANTILES = 200  # nodes of the quadrature of the power


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float

    def covers(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Level:
    """Mean, sample standard deviation and effective number of independent values of a series."""

    mean: float
    std: float
    count: float


def level(values: npt.ArrayLike) -> Level:
    """The `Level` of the values of one run [n].

    Its std is nan for a single value. Raises BadValue for non-finite values.
    """
    data = _values(values)
    std = float(data.std(ddof=1)) if len(data) > 1 else math.nan
    return Level(float(data.mean()), std, effective_count(data))


@dataclass(frozen=True)
class Equivalence:
    """The result of two one-sided tests of |difference| < margin at level ALPHA (Schuirmann 1987).

    difference: ours - theirs, with its confidence interval of level 1 - 2 ALPHA. The interval is within -margin..margin
    if and only if `holds`, unless a series has too few values: the interval is then one point, and p = 1. p: the larger
    of the two p values.
    """

    difference: Interval
    p: float

    @property
    def holds(self) -> bool:
        return self.p < ALPHA


def bootstrap_mean(runs: Sequence[npt.ArrayLike], seed: int = 0) -> Interval:
    """The mean of the runs' means, with its percentile bootstrap interval of level LEVEL.

    runs: one series of values per seed. seed: the random seed of the resampling. Raises BadValue without runs, or for
    an empty or non-finite series.
    """
    rows = [_values(run) for run in runs]
    if not rows:
        raise BadValue("runs", got=0, need="at least one run")
    rng = np.random.default_rng(seed)
    means = np.stack([_block_means(row, rng) for row in rows])  # [S, DRAWS]
    chosen = rng.integers(len(rows), size=(len(rows), DRAWS))
    drawn = np.take_along_axis(means, chosen, axis=0).mean(axis=0)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(np.mean([row.mean() for row in rows])), float(low), float(high))


def difference(ours: Level, theirs: Level) -> Interval:
    """The difference of two means with Welch's t interval of level LEVEL.

    The bounds are nan if a series has fewer than two values, or if both series are constant.
    """
    error, dof = _welch(ours, theirs)
    half = error * float(stats.t.ppf((1 + LEVEL) / 2, dof))
    mean = ours.mean - theirs.mean
    return Interval(mean, mean - half, mean + half)


def equivalent(ours: Level, theirs: Level, margin: float) -> Equivalence:
    """Tests by Welch's t whether two means differ by less than the margin.

    margin: > 0, in the units of the values. A published mean ± std can be given as a `Level` whose count is the number
    of seeds.
    """
    difference = ours.mean - theirs.mean
    error, dof = _welch(ours, theirs)
    if not error > 0:  # two constant series, or too few values
        p = 0.0 if error == 0 and abs(difference) < margin else 1.0
        return Equivalence(Interval(difference, difference, difference), p)
    above, below = stats.t.sf((difference + margin) / error, dof), stats.t.cdf((difference - margin) / error, dof)
    half = error * float(stats.t.ppf(1 - ALPHA, dof))
    return Equivalence(Interval(difference, difference - half, difference + half), max(float(above), float(below)))


def _welch(ours: Level, theirs: Level) -> tuple[float, float]:
    """The standard error of the difference of two means and its degrees of freedom (Welch-Satterthwaite).

    The error is nan if a series has at most one effective value (`Level.count`), and 0 if both series are constant.
    """
    parts = [side.std**2 / side.count if side.count > 1 else math.nan for side in (ours, theirs)]
    error = math.sqrt(sum(parts))
    if not error > 0:
        return error, math.nan
    dofs = [max(side.count - 1, 1.0) for side in (ours, theirs)]
    return error, sum(parts) ** 2 / sum(part**2 / own for part, own in zip(parts, dofs, strict=True))


def seeds_needed(difference: float, std: float) -> int | None:
    """The smallest number of seeds with which a paired two-sided t test detects a mean difference with power POWER.

    std: the standard deviation of the difference over seeds. The power is that of a noncentral t.
    None if the difference is 0, or if about MOST_SEEDS seeds do not suffice.
    """
    if difference == 0:
        return None
    if std == 0:
        return 2
    effect, low, high = abs(difference) / std, 1, 2
    while _power(effect, high) < POWER:
        low, high = high, 2 * high
        if high > 2 * MOST_SEEDS:
            return None
    while high - low > 1:  # the power grows with the seeds
        middle = (low + high) // 2
        low, high = (low, middle) if _power(effect, middle) >= POWER else (middle, high)
    return high


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
    differences = [float(_values(a).mean() - _values(b).mean()) for a, b in zip(ours, theirs, strict=True)]
    count = len(differences)
    if count < 2:
        raise BadValue("runs", got=count, need="at least two pairs")
    mean, std = float(np.mean(differences)), float(np.std(differences, ddof=1))
    half = std / math.sqrt(count) * float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return PairedTest(Interval(mean, mean - half, mean + half), seeds_needed(mean, std))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Floats, Floats]:
    """The nodes in [-1, 1] and the weights of the Gauss quadrature of `_power`."""
    return np.polynomial.legendre.leggauss(QUANTILES)


def _power(effect: float, seeds: int) -> float:
    """The power of a two-sided t test: P(|T| > b) for noncentral T, with the bound b of level ALPHA.

    T = (Z + shift) / S, with a normal Z and S^2 = chi^2/dof; the mean over the quantiles of S is a Gauss quadrature.
    (scipy's noncentral t is nan for large shifts.)
    """
    nodes, weights = _quadrature()
    dof, shift = seeds - 1, effect * math.sqrt(seeds)
    bound = stats.t.ppf(1 - ALPHA / 2, dof) * np.sqrt(2 * special.gammaincinv(dof / 2, (nodes + 1) / 2) / dof)
    return float(weights @ (special.ndtr(shift - bound) + special.ndtr(-shift - bound))) / 2


def effective_count(values: npt.ArrayLike) -> float:
    """The effective number of independent values in a series of n: n / (1 + 2 sum_k (1 - k/n) rho_k), at most n.

    rho_k: the autocorrelation at lag k = 1, 2, ...; the sum ends before the first rho_k <= 0 (the simplest form of
    Geyer 1992).
    """
    data = _values(values)
    n, centred = len(data), data - data.mean()
    power = float(centred @ centred)
    if n < 3 or power == 0:
        return float(n)
    total = 0.0
    for lag in range(1, n):
        rho = float(centred[:-lag] @ centred[lag:]) / power
        if rho <= 0:
            break
        total += (1 - lag / n) * rho
    return n / (1 + 2 * total)


def _block_means(row: Floats, rng: np.random.Generator) -> Floats:
    """The means of DRAWS block-bootstrap resamples of a series of n values, float64 [DRAWS].

    Blocks are circular and have length n^(1/3), rounded.
    """
    n = len(row)
    length = max(1, round(n ** (1 / 3)))
    starts = rng.integers(n, size=(DRAWS, math.ceil(n / length)))
    places = (starts[:, :, None] + np.arange(length)) % n
    return np.asarray(row[places.reshape(DRAWS, -1)[:, :n]].mean(axis=1))


def _values(values: npt.ArrayLike) -> Floats:
    data = np.asarray(values, dtype=np.float64).ravel()
    if not len(data) or not np.isfinite(data).all():
        need = "at least one, all finite (a diverged run has no mean)"
        raise BadValue("values", got=f"{len(data)} values", need=need)
    return data
