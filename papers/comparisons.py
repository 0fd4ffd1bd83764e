"""Comparisons in the ledger that are no experiment of a paper: anybody's runs, published `--as NAME`.

The cell of such a run is its whole config: all keys that influence the results, except the seed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from papers.base import EXPERIMENTS, find
from papers.ledger import Row, check_complete, folders, read, row, run_of
from papers.run_cache import decisive, set_keys
from raylfl.config.load import load_config
from raylfl.errors import BadConfig, RaylflError
from raylfl.report import tables
from raylfl.report.derived import default_last, facets, main_metric
from raylfl.report.runs import RunRecord, group_runs

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
LONGEST = 200  # characters of a name
POINTS = 500  # largest number of points of a curve


def page_name(name: str) -> str:
    """The file name of the page of a ledger."""
    return name.replace("/", "-") + ".md"


def check_name(name: str, results: Path) -> None:
    """Raise BadConfig unless a comparison can have this name, and its page is free."""
    if name.partition("/")[0] in {experiment.partition("/")[0] for experiment in EXPERIMENTS.names()}:
        find(name)
    if not NAME.fullmatch(name) or len(name) > LONGEST or ".jsonl" in name:
        raise BadConfig(
            f"--as {name!r}: a name has letters, digits and . _ - with / between its parts, such as mine/rates, "
            f"up to {LONGEST} characters, without .jsonl"
        )
    # on some file systems mine and Mine are one folder
    others = {page_name(other).lower(): other for other in (*EXPERIMENTS.names(), *folders(results)) if other != name}
    if other := others.get(page_name(name).lower()):
        raise BadConfig(f"--as {name}: {other} has the page {page_name(other)}; choose another name")


def row_of(run: RunRecord) -> Row:
    """The row of a complete run, with its final metrics as measures."""
    check_complete(run)
    cell = _cell_of(run.config) | ({"metrics": run.directions} if run.directions else {})
    final = run.summary.get("final", {}).items()
    measures = {k: float(f"{v:.12g}") for k, v in final if isinstance(v, (int, float)) and math.isfinite(v)}
    return row(run, cell, measures=measures, curves=(main_metric([run]),), points=POINTS)


def _cell_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The decisive keys of a config, with the name of its data's folder or file only."""
    resolved = load_config(config).resolved
    path = resolved["data"].get("init_args", {}).get("path")
    return decisive(resolved) | ({"data.init_args.path": Path(path).name} if isinstance(path, str) else {})


def rows_of_comparison(folder: Path) -> list[Row]:
    """The rows of a comparison, with the defaults of options that are newer than a row."""
    rows = (replace(row, cell=_complete_cell(row.cell)) for row in read(folder))
    return list({row.key: row for row in rows}.values())


def _complete_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """The cell with the defaults of newer options, unless loading fails or would import a user's class."""
    classes = {key: str(value) for key, value in cell.items() if key.endswith(("class_path", ".name")) and value}
    for key, value in classes.items():
        if "." in value and (value.startswith("__main__.") or key not in ("model.class_path", "data.class_path")):
            return cell
    try:
        return _cell_of(set_keys({}, cell)) | {key: cell[key] for key in ("metrics",) if key in cell}
    except RaylflError:
        return cell


def tables_of(rows: Sequence[Row]) -> tuple[list[tables.ReportTable], list[str]]:
    """The tables of a comparison's page, mean ± std of each setting and the keys that all share; each row's setting."""
    groups = group_runs([run_of(each, set_keys({}, each.cell), str(number)) for number, each in enumerate(rows)])
    labels = {int(run.path.name): group.label for group in groups for run in group.runs}
    metric = main_metric([run for group in groups for run in group.runs])
    summary = tables.summary(facets(groups), metric, last=default_last(groups), target=None)
    twice = "the same setting and seed on another machine"
    return [summary, tables.common(groups)], [labels.get(number, twice) for number in range(len(rows))]
