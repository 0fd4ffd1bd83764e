"""Numbers of experiments: published ones and authors' logs from files, their texts, and statistics for claims.

A run is the series of its n measured values in a window of rounds. Values of neighbouring rounds are correlated. The
bootstrap therefore resamples blocks of neighbouring rounds (Kuensch 1989); t statistics use the effective number of
independent values. The intervals are about the level of this run only, not about the results of other seeds.
"""

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from raylfl.core.arrays import Ints
from raylfl.errors import DataMissing
from raylfl.report.derived import Stat
from raylfl.report.statistics import LEVEL, ConfidenceInterval, finite_values
from raylfl.report.wording import count_text, stat_text

ACCURACY = "test/accuracy"
accuracy_text = partial(stat_text, metric=ACCURACY)
DRAWS = 2000  # resamples of the bootstrap
CIFAR10 = (5000,) * 10  # training images per class
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
Level = tuple[float, float, float]  # mean, sample standard deviation, effective number of independent values
T = TypeVar("T")


def table_of(name: str) -> list[dict[str, str]]:
    """The rows of a file of published numbers, `published/NAME.csv`: column -> text."""
    with (Path(__file__).parent / "published" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def path_of(file: str) -> Path:
    """The path of a file of the authors' logs below RAYLFL_DATA. Raises DataMissing if it is missing."""
    from raylfl.data.base import data_root  # not before: it imports torch

    path = data_root(None) / file
    if not path.is_file():
        raise DataMissing(f"{path} is missing: the authors' logs, to compare with; set RAYLFL_DATA to the folder above")
    return path


def measurements(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a file of logs (gzipped CSV): column -> text."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def listing(values: Mapping[str, Any], show: Callable[[Any], str] = percent, sep: str = " ", end: str = ", ") -> str:
    """The names with their values as text: `FedAvg 52.4, FedAvgM 61.2`."""
    return end.join(f"{name}{sep}{show(value)}" for name, value in values.items())


def ordered(values: Mapping[str, T], key: Callable[[T], Any] = lambda value: value) -> dict[str, T]:
    """The entries by their values, the smallest first."""
    return dict(sorted(values.items(), key=lambda entry: key(entry[1])))


def stat_of(text: str) -> Stat:
    """A published number in per cent, such as `78.43±2.46` or `78.43`, as a statistic of fractions."""
    mean, _, std = text.partition("±")
    return Stat(float(mean) / 100, float(std) / 100 if std else math.nan, 1, 1)


def ratio_text(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def mean_cost(costs: Stat) -> float:
    """The mean over seeds of the cost of reaching a goal; inf unless every seed reached it."""
    return costs.mean if costs.count == costs.of else math.inf


def cost_or_dash(value: float) -> str:
    """The cost of reaching a goal as text; `–` if it was never reached (infinite cost)."""
    return count_text(value) if math.isfinite(value) else "–"


def level(values: npt.ArrayLike) -> Level:
    data = finite_values(values)
    std = float(data.std(ddof=1)) if len(data) > 1 else math.nan
    return float(data.mean()), std, effective_count(data)


def bootstrap_mean(values: npt.ArrayLike, seed: int = 0) -> ConfidenceInterval:
    """The mean of the values of one run [n], with its percentile bootstrap interval of level LEVEL.

    Blocks are circular and have length n^(1/3), rounded. Raises BadValue for an empty or non-finite series.
    """
    row = finite_values(values)
    n = len(row)
    length = max(1, round(n ** (1 / 3)))
    starts = np.random.default_rng(seed).integers(n, size=(DRAWS, math.ceil(n / length)))
    places = (starts[:, :, None] + np.arange(length)) % n
    means = row[places.reshape(DRAWS, -1)[:, :n]].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return ConfidenceInterval(float(row.mean()), float(low), float(high))


def difference(ours: Level, theirs: Level, confidence: float = LEVEL) -> ConfidenceInterval:
    """The difference of two means with Welch's t interval of this level (Welch-Satterthwaite degrees of freedom).

    The bounds are nan if a series has at most one effective value; two constant series have an interval of one point.
    """
    mean = ours[0] - theirs[0]
    if min(ours[2], theirs[2]) <= 1:
        return ConfidenceInterval(mean, math.nan, math.nan)
    parts = [std**2 / count for _, std, count in (ours, theirs)]
    dofs = [max(count - 1, 1.0) for _, _, count in (ours, theirs)]
    spread = sum(part**2 / dof for part, dof in zip(parts, dofs, strict=True))
    half = math.sqrt(sum(parts)) * float(stats.t.ppf((1 + confidence) / 2, sum(parts) ** 2 / spread)) if spread else 0.0
    return ConfidenceInterval(mean, mean - half, mean + half)


def effective_count(values: npt.ArrayLike) -> float:
    """The effective number of independent values in a series of n: n / (1 + 2 sum_k (1 - k/n) rho_k), at most n.

    rho_k: the autocorrelation at lag k; the sum ends before the first rho_k <= 0 (the simplest form of Geyer 1992).
    """
    data = finite_values(values)
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


def counts_of(partition: Mapping[str, Any], sizes: Sequence[int], clients: int) -> Ints:
    """The samples per client and class [N, K] in a partition of classes of these sizes."""
    from raylfl.config.components import build
    from raylfl.heterogeneity.partition.base import PARTITIONS, Samples
    from raylfl.heterogeneity.partition.stats import class_counts

    samples = Samples(sum(sizes), np.repeat(np.arange(len(sizes)), sizes))
    return class_counts(build(PARTITIONS, partition, "partition").split(samples, clients, seed=0), samples)
