"""Comparisons in the ledger that are no experiment of a paper: anybody's runs, published `--as NAME`.

The cell of such a run is its whole config: all keys that influence the results, except the seed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from papers.base import EXPERIMENTS, find
from papers.ledger import Row, check_complete, folders, row
from papers.ledger_rows import run_of
from papers.run_cache import decisive
from papers.setting import set_keys
from raylfl.config.load import load_config
from raylfl.diagnostics.metric_names import stated_directions
from raylfl.errors import BadConfig
from raylfl.report import tables
from raylfl.report.derived import default_last, main_metric
from raylfl.report.facets import facets
from raylfl.report.runs import Group, RunRecord, group_runs

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
POINTS = 500  # largest number of points of a curve


def page_name(name: str) -> str:
    """The file name of the page of a ledger."""
    return name.replace("/", "-") + ".md"


def check_name(name: str, results: Path) -> None:
    """Raises BadConfig unless a comparison can have this name: it looks like no experiment, and its page is free."""
    groups = {experiment.partition("/")[0] for experiment in EXPERIMENTS.names()}
    if name.partition("/")[0] in groups:
        find(name)
    if not NAME.fullmatch(name):
        raise BadConfig(
            f"--as {name}: a name has letters, digits and . _ - with / between its parts, such as mine/rates"
        )
    others = {page_name(other): other for other in (*EXPERIMENTS.names(), *folders(results)) if other != name}
    if page_name(name) in others:
        raise BadConfig(f"--as {name}: {others[page_name(name)]} has the page {page_name(name)}; choose another name")


def row_of(run: RunRecord) -> Row:
    """The row of a run, with its final metrics as measures. Raises BadConfig as `check_complete` does."""
    check_complete(run)
    metric = main_metric([run])
    cell = decisive(load_config(run.config).resolved)
    directions = {"metrics": run.directions} if run.directions else {}
    final = {
        name: float(f"{value:.12g}")
        for name, value in run.summary.get("final", {}).items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
    return row(run, cell | directions, measures=final, curves=(metric,), points=POINTS)


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """The settings of a comparison, each with its runs on all seeds, from the rows of all machines."""
    runs = []
    for number, each in enumerate(rows):
        run = run_of(each, set_keys({}, each.cell), str(number))
        run.directions = stated_directions(run.config)
        runs.append(run)
    return group_runs(runs)


def labels_of(rows: Sequence[Row]) -> list[str]:
    """The name of each row's setting, which distinguishes it from the others."""
    labels = {int(run.path.name): group.label for group in groups_of(rows) for run in group.runs}
    return [labels.get(number, "the same setting and seed on another machine") for number in range(len(rows))]


def tables_of(rows: Sequence[Row]) -> list[tables.ReportTable]:
    """The tables of a comparison's page: mean ± std of each setting, and the keys that all settings share."""
    groups = groups_of(rows)
    metric = main_metric([run for group in groups for run in group.runs])
    summary = tables.summary(facets(groups), metric, last=default_last(groups), target=None)
    return [summary, tables.common(groups)]
