"""The rows of the ledger as plain dicts, for `raylfl.ledger`."""

import subprocess
from pathlib import Path
from typing import Any

from papers.base import EXPERIMENTS
from papers.comparisons import rows_of_comparison
from papers.grid import Grid
from papers.ledger import folders, last_value, read
from papers.ledger_rows import key_of
from raylfl.errors import BadConfig, did_you_mean


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
