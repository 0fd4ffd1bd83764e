"""The rows of the ledger as runs of an experiment, and as plain dicts for `raylfl.ledger`; what an experiment lacks."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from papers.base import EXPERIMENTS, PaperResult, plain
from papers.comparisons import rows_of_comparison
from papers.grid import Grid
from papers.ledger import Row, folders, last_value, order, read, run_of
from papers.run_cache import CellConfig, RunCache, load_record
from raylfl.errors import BadConfig, did_you_mean
from raylfl.execution.planned import PlannedRun
from raylfl.execution.store import words_of
from raylfl.report.runs import RunRecord


class LedgerRows(RunCache):
    """A cache whose runs are the ledger's rows of an experiment; a row may be missing if `--only` can select cells."""

    def __init__(self, experiment: Grid, rows: Iterable[Row], folder: Path = Path()):
        super().__init__(folder, "paper" if experiment.scales else "smoke")
        self.experiment = experiment
        self.rows = {key_of(row.cell, row.seed): row for row in sorted(rows, key=order)}

    def records(self, wanted: Sequence[tuple[CellConfig, int]]) -> list[RunRecord | None]:
        pairs = [(setting, self.rows.get(key_of(setting.cell, seed))) for setting, seed in wanted]
        missing = list(dict.fromkeys(setting.label for setting, row in pairs if row is None))
        if missing and not self.experiment.choices:
            names = f"{len(missing)} settings are missing ({missing[0]}, ...)"
            raise BadConfig(f"runs of {names}; `raylfl reproduce` makes them")
        return [None if row is None else self.record(setting, row) for setting, row in pairs]

    def record(self, setting: CellConfig, row: Row) -> RunRecord:
        if lacks := ", ".join(self.experiment.lacks(row)):
            raise BadConfig(f"{setting.label}: its row in the ledger is older than {lacks}; make the run again")
        return run_of(row, setting.config, setting.folder(row.seed, row.digest))


def key_of(cell: Any, seed: int) -> tuple[Any, ...]:
    return (*((axis, plain(value)) for axis, value in sorted(cell.items())), seed)


def rows_of(results: Path, name: str | None) -> list[dict[str, Any]]:
    """One dict per row of the ledger of this name below `results`, or of all. Raises BadConfig if there is none."""
    ledgers, experiments = folders(results), EXPERIMENTS.names()
    if name is not None and name not in ledgers:
        hint = did_you_mean(name, [*ledgers, *experiments], f"it has {', '.join(ledgers) or 'no rows at all'}")
        remedy = f"`raylfl reproduce {name} --scale paper` makes its runs" if name in experiments else hint
        raise BadConfig(f"{name} has no rows in {results}; {remedy}")
    dates = _dates_of_commits(results)
    records = []
    for ledger in ledgers if name is None else [name]:
        grid: Any = EXPERIMENTS.get(ledger).cls() if ledger in experiments else None
        points = {key_of(grid.cell(p), 0): p for p in grid.points("paper")} if isinstance(grid, Grid) else {}
        for row in rows_of_comparison(ledgers[ledger]) if grid is None else read(ledgers[ledger]):
            point, facts = points.get(key_of(row.cell, 0)), vars(row)
            metric, value, published = grid.headline(point, row) if point else (row.metric, last_value(row), None)
            record = {"experiment": ledger, **row.cell, "seed": row.seed}
            record |= {"metric": metric, "value": value, "published": published}
            record |= {key: facts[key] for key in ("rounds", "diverged", "seconds")} | row.machine | row.versions
            record |= {"commit": row.commit, "commit_date": dates.get(row.commit or "")}
            record |= {key: facts[key] for key in ("params_sha256", "digest", "command")}
            records.append(record | {f"measure/{name}": value for name, value in row.measures.items()})
    return records


def _dates_of_commits(folder: Path) -> dict[str, str]:
    """Commit -> its date, of the repository around a folder."""
    command = ["git", "-C", str(folder), "log", "--all", "--format=%H %cs"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(line.split() for line in done.stdout.splitlines())


class Lacking(RunCache):
    """A cache of finished runs and rows, which collects `missing` runs, and raises Enough if nothing can be said."""

    def __init__(self, experiment: PaperResult, rows: Iterable[Row], *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.experiment, self.missing = experiment, list[tuple[CellConfig, int]]()
        self.ledger = LedgerRows(experiment, rows) if isinstance(experiment, Grid) else None
        self.folders = {path.name.rpartition("-")[0] for path in self.runs.glob("*")}

    def records(self, wanted: Sequence[tuple[CellConfig, int]]) -> list[RunRecord | None]:
        records = [self._existing(setting, seed) for setting, seed in wanted]
        self.missing += [each for each, record in zip(wanted, records, strict=True) if record is None]
        if self.missing and not (any(records) and self.experiment.choices):
            raise Enough
        return records

    def _existing(self, setting: CellConfig, seed: int) -> RunRecord | None:
        row = self.ledger and self.ledger.rows.get(key_of(setting.cell, seed))
        if self.ledger and row and not self.ledger.experiment.lacks(row):
            return self.ledger.record(setting, row)
        return load_record(run) if self.begun(setting, seed) and (run := self.plan(setting, seed)).complete else None

    def begun(self, setting: CellConfig, seed: int) -> bool:
        """Whether the run seems to exist, by the name of its folder without the digest."""
        return f"{words_of(setting.label)}-s{seed}" in self.folders

    def plans(self) -> Iterator[PlannedRun]:
        """The missing runs, interrupted ones first."""
        runs = {(setting.label, seed): (setting, seed) for setting, seed in self.missing}
        for setting, seed in sorted(runs.values(), key=lambda run: not self.begun(*run)):
            yield self.plan(setting, seed)


class Enough(Exception):
    """Ends an experiment as soon as its next missing runs are known."""
