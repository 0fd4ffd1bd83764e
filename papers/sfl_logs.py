"""The logs of SFL's authors (Li & Lyu, NeurIPS 2023, [2]): test accuracy by round, from RAYLFL_DATA/published.

`sfl_test_accuracy.csv.gz` has one row per measurement. If a cell has several logs, one after the other, the last one is
used, as in table 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from papers.author_logs import measurements, path_of
from papers.sfl_cells import TASKS

FILE = Path("published") / "sfl_test_accuracy.csv.gz"
SOURCE = "the authors' public logs, seed 1234 (published/sfl_test_accuracy.csv.gz)"
Series = list[tuple[int, float]]  # (round from 0, accuracy as a fraction)


def log_of(cell: Mapping[str, Any], rounds: int) -> Series | None:
    """The authors' log of a cell at its learning rate, with this many rounds; None if there is none.

    cell: the keys task, classes, steps, method, lr and clip. Raises DataMissing if the file of logs is missing.
    """
    clip = cell["clip"] or 0
    key = (*TASKS[cell["task"]], cell["method"], cell["classes"], cell["steps"], float(cell["lr"]), clip, rounds)
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
