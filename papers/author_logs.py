"""The logs that authors published beside their papers: gzipped CSV files in RAYLFL_DATA/published."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

from raylfl.errors import DataMissing


def path_of(file: Path) -> Path:
    """The path of a file of logs, given relative to RAYLFL_DATA. Raises DataMissing if it is missing."""
    from raylfl.data.base import data_root  # not before: it imports torch

    path = data_root(None) / file
    if not path.is_file():
        raise DataMissing(f"{path} is missing: the authors' logs, to compare with; set RAYLFL_DATA to the folder above")
    return path


def measurements(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a file of logs, one per measurement: column -> text."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
