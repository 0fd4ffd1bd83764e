"""Numbers of experiments as text; published numbers and authors' logs from files and text."""

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from raylfl.errors import DataMissing
from raylfl.report.derived import Stat
from raylfl.report.wording import count_text, stat_text

ACCURACY = "test/accuracy"
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


def listing(
    values: Mapping[str, Any], show: Callable[[Any], str] = percent, between: str = " ", end: str = ", "
) -> str:
    """The names with their values as text: `FedAvg 52.4, FedAvgM 61.2`."""
    return end.join(f"{name}{between}{show(value)}" for name, value in values.items())


def ordered(values: Mapping[str, T], key: Callable[[T], Any] = lambda value: value) -> dict[str, T]:
    """The entries by their values, the smallest first."""
    return dict(sorted(values.items(), key=lambda entry: key(entry[1])))


def stat_of(text: str) -> Stat:
    """A published number in per cent, such as `78.43±2.46` or `78.43`, as a statistic of fractions."""
    mean, _, std = text.partition("±")
    return Stat(float(mean) / 100, float(std) / 100 if std else math.nan, 1, 1)


def accuracy_text(stat: Stat) -> str:
    return stat_text(stat, ACCURACY)


def ratio_text(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def mean_cost(costs: Stat) -> float:
    """The mean over seeds of the cost of reaching a goal; inf unless every seed reached it."""
    return costs.mean if costs.count == costs.of else math.inf


def cost_or_dash(value: float) -> str:
    """The cost of reaching a goal as text; `–` if it was never reached (infinite cost)."""
    return count_text(value) if math.isfinite(value) else "–"
