"""The logs of SFL's authors (Li & Lyu, NeurIPS 2023, [2]): test accuracy by round, from RAYLFL_DATA/published.

`sfl_test_accuracy.csv.gz` has one row per measurement. If a cell has several logs, one after the other, the last one is
used, as in table 10. The ledgers keep an excerpt per cell.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from papers.ledger import thin_out, write_lines
from papers.sfl_grid import TASKS
from papers.statistics import effective_count
from papers.texts import measurements, path_of

REFERENCE = "reference.jsonl"
LAST, MORE = 40, 400  # the paper averages 40 rounds; 400 rounds have ten times as many values
FILE = "published/sfl_test_accuracy.csv.gz"
SOURCE = "the authors' public logs, seed 1234 (published/sfl_test_accuracy.csv.gz)"
Series = list[tuple[int, float]]  # (round from 0, accuracy as a fraction)


def log_of(cell: Mapping[str, Any], rounds: int) -> Series | None:
    """The authors' log of a cell with this many rounds, if it has one. Raises DataMissing without the file of logs."""
    clip = cell["clip"] or 0
    names = (file.partition("/")[2] for file in TASKS[cell["task"]]["base"])  # of data and model
    key = (*names, cell["method"], cell["classes"], cell["steps"], float(cell["lr"]), clip, rounds)
    return _logs(path_of(FILE)).get(key)


@cache
def _logs(path: Path) -> dict[tuple[Any, ...], Series]:
    logs: dict[tuple[Any, ...], Series] = {}
    for line in measurements(path):
        numbers = (int(line["classes"]), int(line["local_steps"]), float(line["lr"]), int(line["clip_norm"]))
        series = logs.setdefault((line["data"], line["model"], line["method"], *numbers, int(line["rounds"])), [])
        r = int(line["round"]) - 1
        if series and r <= series[-1][0]:
            series.clear()
        series.append((r, float(line["test_accuracy_percent"]) / 100))
    return logs


@dataclass(frozen=True)
class Reference:
    """An excerpt of a cell's log; last: number of last rounds -> [mean, std, values, effective number of values]."""

    cell: dict[str, Any]
    source: str
    last: dict[str, list[float]]
    curve: list[list[float]]


def references(folder: Path, cells: Iterable[tuple[dict[str, Any], int]]) -> dict[str, Reference]:
    """Key of a cell -> excerpt of its log, if it has one; cells: with their rounds.

    The excerpts of new cells are added to the file of the ledger in this folder.
    """
    path = folder / REFERENCE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    excerpts = {key(ref.cell): ref for ref in (Reference(**json.loads(line)) for line in lines)}
    new = {key(cell): (cell, rounds) for cell, rounds in cells if key(cell) not in excerpts}
    if fresh := {name: ref for name, each in new.items() if (ref := _reference(*each))}:
        excerpts |= fresh
        write_lines(path, [asdict(excerpts[name]) for name in sorted(excerpts)])
    return excerpts


def _reference(cell: dict[str, Any], rounds: int) -> Reference | None:
    series = log_of(cell, rounds)
    if series is None:
        return None
    last = {}
    for window in (LAST, MORE):
        values = np.array([value for r, value in series if r >= rounds - window])
        numbers = (values.mean(), values.std(ddof=1), len(values), effective_count(values))
        last[str(window)] = [round(float(number), 6) for number in numbers]
    return Reference(cell, SOURCE, last, [[r, round(value, 4)] for r, value in thin_out(series, 50)])


def key(cell: Mapping[str, Any]) -> str:
    return json.dumps([str(cell[name]) for name in ("task", "classes", "steps", "method", "lr", "clip")])
