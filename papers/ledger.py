"""The ledger of results: `results/NAME/runs.jsonl`, one row per published run, written by `raylfl publish`.

Runs that are published `--as NAME` have a file of their machine beside it, `runs-MACHINE.jsonl`, so that two machines
never change the same file; the ledger of a name is the union of its files. A row contains everything that tables,
curves and checks need; the raw `metrics.jsonl` files are not published.
"""

import hashlib
import json
import math
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from papers.base import Claim
from papers.run_cache import digests
from raylfl.config.identity import fingerprint_of_config
from raylfl.config.load import load_config
from raylfl.diagnostics.metric_names import stated_directions
from raylfl.errors import BadConfig, RaylflError
from raylfl.execution.planned import ORIGIN
from raylfl.python.api import IDENTITY
from raylfl.report.derived import main_metric, tail
from raylfl.report.labels import order_key
from raylfl.report.runs import RunRecord

ROWS = "runs.jsonl"
POINTS = 120  # largest number of points of a thinned curve
WINDOWS = (40, 100, 400)  # rounds of the last-k means
DIGITS = 6


@dataclass(frozen=True)
class Row:
    """A published run.

    cell: the keys and values of its cell in the table. digest: of its config. metric: the main one. rounds: as planned,
    fewer if the run ended early. last: number k of last rounds -> mean of the metric over them; None if the run
    diverged. curve: at most POINTS pairs (round, value). seconds: with all its resumptions. command: that repeats it.
    measures: further numbers, see `Grid`. diverged_at: the round, from 0, in which the run diverged; None also if the
    row is older than this field. curves: further metric -> curve. commit: of raylfl; own_commit: of the user's code, if
    it is another one.
    """

    cell: dict[str, Any]
    seed: int
    digest: str
    metric: str
    rounds: int
    diverged: bool
    last: dict[str, float | None]
    curve: list[list[float]]
    seconds: float | None
    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    params_sha256: str | None
    command: str = ""
    measures: dict[str, float | None] = field(default_factory=dict)
    diverged_at: int | None = None
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    own_commit: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """(cell as text, seed), unique within a ledger."""
        return json.dumps(self.cell, sort_keys=True), self.seed

    def window(self, last: int) -> list[float]:
        """The curve's values in the last `last` rounds; empty if the run diverged."""
        return [] if self.diverged else [value for r, value in self.curve if r >= self.rounds - last]


def row(
    run: RunRecord,
    cell: Mapping[str, Any],
    command: str = "",
    measures: Mapping[str, float | None] | None = None,
    curves: Iterable[str] = (),
    points: int = POINTS,
) -> Row:
    """The row of a run; curves: the metrics of which it has a curve besides the main one, of at most so many points."""
    metric, origin = main_metric([run]), _origin(run)
    rounds = len(run.rounds) if run.summary.get("stopped_early") else int(run.config["rounds"])
    # the summary has the seconds of the last process only, for a resumed run less than the sum over the rounds
    seconds = max(float(np.nansum(run.column("time/round"))), float(run.summary.get("wall_seconds", 0.0)))
    means = {k: float(np.mean(tail(run, metric, k))) for k in WINDOWS if k <= rounds}
    return Row(
        dict(cell),
        int(run.config["seed"]),
        named_digest(run) or digests(run.config)[-1],
        metric,
        rounds,
        run.diverged,
        {str(k): round(mean, DIGITS) if math.isfinite(mean) else None for k, mean in means.items()},
        _points(run, metric),
        round(seconds, 1) if seconds else None,
        {key: origin.get("host", {}).get(key) for key in ("cpu", "cpus", "memory_gib")},
        origin.get("versions", {}),
        origin.get("commit"),
        run.summary.get("params_sha256"),
        command,
        dict(measures or {}),
        len(run.rounds) if run.diverged else None,
        {name: _points(run, name, DIGITS, points) for name in curves},
        None if (own := origin.get("own_commit")) == origin.get("commit") else own,
    )


def _points(run: RunRecord, metric: str, digits: int = 2 * DIGITS, most: int = POINTS) -> list[list[float]]:
    """The curve of a metric: accuracies with DIGITS decimals, other values with `digits` digits."""
    values = run.column(metric)
    seen = np.isfinite(values)
    points = thin_out(list(zip(run.rounds[seen].tolist(), values[seen].tolist(), strict=True)), most)
    short = metric.endswith("accuracy")
    return [[r, round(value, DIGITS) if short else float(f"{value:.{digits}g}")] for r, value in points]


def _origin(run: RunRecord) -> Mapping[str, Any]:
    """Commit (of raylfl, else of the working directory), versions and machine of a run, if recorded."""
    path = run.path / ORIGIN
    origin = run.summary or (json.loads(path.read_text()) if path.is_file() else {})
    return {**origin, "commit": origin.get("raylfl_commit") or origin.get("git_commit")} if origin else {}


def check_complete(run: RunRecord) -> None:
    """Raise BadConfig, with every fault, unless a run is readable, complete, of a clean commit and of its config."""
    name, origin = run.path.name, _origin(run)
    problems = [f"{name}: {fault}" for fault in run.faults]
    if run.diverged and not origin:
        problems.append(f"{name} diverged without a record of its commit; delete it and run it again")
    elif not (run.diverged or run.finished):
        problems.append(f"{name} is not finished: `raylfl resume {run.path}` resumes it")
    elif not run.diverged and len(run.rounds) < run.config["rounds"] and not run.summary.get("stopped_early"):
        problems.append(f"{name} has rows of {len(run.rounds)} of its {run.config['rounds']} rounds")
    if origin and not origin["commit"]:
        problems.append(f"{name} has no record of its commit; delete it and run it again in a git checkout of raylfl")
    if str(origin.get("commit")).endswith("+changes"):
        problems.append(f"{name} ran with files that differ from their commit; commit them and run it again")
    own = origin.get("own_commit", "")  # absent if all classes are raylfl's
    if own is None or own.endswith("+changes"):
        problems.append(f"{name} ran with code of yours that is in no git commit; commit it and run it again")
    try:
        load_config(run.config)  # later versions may add keys; the digest in the name shows that none is missing
    except RaylflError as error:
        problems.append(f"{name}: its config.yaml is invalid: {error}")
    named, known = named_digest(run), digests(run.config)
    if named and named not in known:
        problems.append(f"{name}: its config has the digest {known[-1]}, not that of its name")
    recorded = run.summary or not (run.path / IDENTITY).is_file()
    if not named and recorded and fingerprint_of_config(run.config) != run.summary.get("config_sha256"):
        problem = f"{name}: its folder's name has no digest of its config, and summary.json has another one; "
        problems.append(problem + "give the folder its first name again, or run it again")
    if problems:
        raise BadConfig(problems)


def named_digest(run: RunRecord) -> str | None:
    """The config digest in the name of a run's folder, unless the name is the store's or has another form."""
    named = re.search(r"-s\d+-([0-9a-f]{8})$", run.path.name)
    return named[1] if named and not (run.path / IDENTITY).is_file() else None


def thin_out(points: Sequence[tuple[int, float]], most: int = POINTS) -> list[tuple[int, float]]:
    """At most `most` of the points, evenly spaced."""
    return [points[k] for k in np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int)]


def last_value(row: Row) -> float | None:
    """The mean over the fewest last rounds of WINDOWS; of a shorter run the last value."""
    ends = [*row.last.values(), *(value for _, value in row.curve[-1:])]
    return None if row.diverged or not ends else ends[0]


def machine_file() -> str:
    return f"runs-{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}.jsonl"


def folders(results: Path) -> dict[str, Path]:
    """Name -> folder of each ledger below `results` that has rows."""
    paths = sorted({path.parent for path in results.rglob("runs*.jsonl") if path.is_file()})
    return {path.relative_to(results).as_posix(): path for path in paths}


def read(folder: Path, more: Iterable[Row] = (), file: str = ROWS) -> list[Row]:
    """The rows of all files, with `more` in one; of the same cell and seed that in ROWS counts, else the last."""
    files = {path.name: _rows_in(path) for path in folder.glob("runs*.jsonl")}
    files[file] = [*files.get(file, ()), *more]
    return list({row.key: row for name in sorted(files) for row in files[name]}.values())


def verdicts(folder: Path) -> tuple[list[Claim], list[str]]:
    """The published claims and notes of an experiment; none if there are none."""
    path = folder / "verdicts.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"claims": [], "notes": []}
    return [Claim(**claim) for claim in content["claims"]], content["notes"]


def _rows_in(path: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n") if path.is_file() else (), 1):
        try:
            rows += [Row(**json.loads(line))] if line else []
        except (ValueError, TypeError) as error:
            raise BadConfig(
                f"{path}, line {number}, is no row of the ledger ({error}): restore the file from git, or "
                "update raylfl if a later version wrote it"
            ) from None
    return rows


def run_of(row: Row, config: Mapping[str, Any], name: str) -> RunRecord:
    """A row as a run with this config and name."""
    rounds = row.rounds
    if row.diverged:  # without `diverged_at`, one round more than up to the last point
        seen = 2 + int(row.curve[-1][0] if row.curve else -1)
        rounds = max(1, seen if row.diverged_at is None else row.diverged_at)
    metrics = {}
    for metric, points in {row.metric: row.curve, **row.curves}.items():
        values = metrics[metric] = np.full(rounds, np.nan)
        for r, value in points:
            values[int(r)] = value
        if row.diverged:
            values[-1] = np.inf
    config = {**config, "seed": row.seed, "rounds": row.rounds}
    run = RunRecord(Path(name), config, np.arange(rounds), metrics, {"measures": row.measures}, diverged=row.diverged)
    run.directions = stated_directions(config)
    return run


def add(folder: Path, rows: Iterable[Row], file: str = ROWS) -> int:
    """Write rows into a file of the ledger; returns the number of new or changed ones."""
    earlier = {row.key: row for row in _rows_in(folder / file)}
    updated = earlier | {row.key: row for row in rows}
    if updated == earlier:
        return 0
    # not written if empty: older rows keep their bytes
    later: dict[str, Any] = {"diverged_at": None, "curves": {}, "own_commit": None}
    entries = (asdict(row).items() for row in sorted(updated.values(), key=order))
    write_lines(folder / file, [{k: v for k, v in entry if k not in later or v != later[k]} for entry in entries])
    return sum(earlier.get(key) != row for key, row in updated.items())


def write_lines(path: Path, items: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(item, ensure_ascii=False) for item in items]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def order(row: Row) -> tuple[Any, ...]:
    return tuple(map(order_key, row.cell.values())), row.seed, row.digest
