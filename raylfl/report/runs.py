"""Run directories as plain data: finding and reading them, and pooling runs that differ only in their seed.

Runs need not be finished: an unfinished run has no summary.json, and a diverged one has diverged.txt instead. Damaged
lines and files are left out and reported in `RunRecord.faults`; a run with an unreadable config is left out and
reported by `read_runs`. Neither torch nor Ray is imported.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from pydantic import TypeAdapter

from raylfl.config.identity import flatten, identity
from raylfl.config.text import FORMAT, KEY, refuse_other
from raylfl.core.arrays import Floats, Ints
from raylfl.diagnostics.metric_names import OF_NODES, Better, direction, higher_is_better, stated_directions
from raylfl.errors import BadConfig, BadValue
from raylfl.heterogeneity.trace import row_problem
from raylfl.report.labels import canonical, is_scenario, labels, method_of, order_key, varying
from raylfl.runtime.records.lines import lines, numbers_of, read_rows
from raylfl.runtime.records.mirror import local_view
from raylfl.runtime.records.run_dir import CLIENT_NAMES, DIRECTIONS, DIVERGED

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same results, about ten times faster
T = TypeVar("T")
Runs = Any  # a directory with runs, a Result or a Run; or an iterable of these
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]  # of runs, or of folders that hold some
DEEPEST, LARGEST = 50, 100_000  # largest depth and number of values of a config or summary; real ones have far less
UNREADABLE = (OSError, ValueError, RecursionError, yaml.YAMLError, BadConfig)  # ValueError: wrong bytes, broken JSON
log = logging.getLogger(__name__)


@dataclass(eq=False)
class RunRecord:
    """The content of a run directory.

    rounds: the R recorded rounds, 0-based, ascending [R]. metrics: name -> values [R]; nan if a round did not measure
    the metric, inf if the value was not finite. summary: empty while the run is unfinished. faults: descriptions of
    unreadable files and lines; the list grows when further files of the run are read. nodes: metric -> node -> its last
    value, for methods without a server. directions: metric -> its better direction, if it is stated. diverged: whether
    the run ended in the round after the recorded ones, because it diverged.
    """

    path: Path
    config: dict[str, Any]
    rounds: Ints
    metrics: dict[str, Floats]
    summary: dict[str, Any]
    faults: list[str] = field(default_factory=list)
    nodes: dict[str, dict[int, float]] = field(default_factory=dict)
    directions: dict[str, Better] = field(default_factory=dict)
    diverged: bool = False

    @property
    def finished(self) -> bool:
        """Whether the run has finished: it has a readable `summary.json`, the file written last."""
        return bool(self.summary)

    @property
    def state(self) -> str:
        return "diverged" if self.diverged else "finished" if self.finished else "unfinished"

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def setting(self) -> dict[str, Any]:
        """The config with dotted keys, without the seed and other keys in which runs of one setting may differ."""
        return flatten(identity(self.config, of="group"))

    def column(self, name: str) -> Floats:
        """The metric's values in the run's R recorded rounds [R]; all nan if the run never measured it."""
        return self.metrics.get(name, np.full(len(self.rounds), np.nan))

    def measured(self, name: str) -> bool:
        """Whether the metric `name` has at least one finite value."""
        return bool(np.isfinite(self.column(name)).any())

    @property
    def newest(self) -> dict[str, float]:
        """Metric -> its newest finite value, for the metrics with one."""
        finite = {name: values[np.isfinite(values)] for name, values in self.metrics.items()}
        return {name: float(values[-1]) for name, values in finite.items() if len(values)}

    @cached_property
    def participation(self) -> list[dict[str, Any]]:
        """The rows of `participation.jsonl`, read on first use; damaged rows are added to `faults`."""
        most = self.config.get("num_clients") or (len(self.partition_counts[1]) if self.partition_counts else math.inf)
        return self._rows(
            "participation.jsonl", lambda row: row_problem(row) is None and max(row["cohort"], default=-1) < most
        )

    def _rows(self, name: str, sound: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """The rows of the .jsonl file `name` for which `sound` returns true; its other lines are added to `faults`."""
        found = read_rows(self.path / name)
        good = {number: row for number, row in zip(found.numbers, found.rows, strict=True) if sound(row)}
        damaged = sorted({*found.damaged, *found.numbers} - set(good))
        if damaged:
            self.faults.append(f"{name}: {lines(damaged)} cannot be read")
        return list(good.values())

    @property
    def clients(self) -> int:
        """The number of clients: from the config, else from the partition, else the largest sampled id plus 1."""
        if self.config.get("num_clients"):
            return int(self.config["num_clients"])
        if self.partition_counts is not None:
            return len(self.partition_counts[1])
        return 1 + max((max(row["cohort"], default=-1) for row in self.participation), default=-1)

    @cached_property
    def partition_counts(self) -> tuple[list[str], Ints] | None:
        """(Class names, samples of each class at each client [clients, classes]); None without a readable record."""
        return self._json("partition_counts.json", _class_counts)

    @cached_property
    def client_names(self) -> list[str] | None:
        """The names of the clients in order; None if the data give none, or the record cannot be read."""
        return self._json(CLIENT_NAMES, TypeAdapter(list[str]).validate_python)

    def _json(self, name: str, read: Callable[[Any], T | None]) -> T | None:
        """What `read` makes of the content of the file `name`.

        None if the file is missing, or if it cannot be read, which is added to `faults`.
        """
        path = self.path / name
        try:
            return read(_sound(json.loads(path.read_bytes()))) if path.exists() else None
        except (*UNREADABLE, KeyError, TypeError):
            self.faults.append(f"{name} cannot be read")
            return None

    def complete(self, rounds: int) -> bool:
        """Whether the run finished after at least `rounds` rounds or by its own rule (`stop`), undamaged."""
        rows = min(len(self.rounds), len(self.participation))
        return self.finished and (rows >= rounds or "stopped_early" in self.summary) and not self.faults


def more_is_better(runs: Iterable[RunRecord], metric: str) -> bool:
    """Whether larger values of the metric are better, as the runs' configs and logged metric objects state it.

    Raises BadValue if it is neither stated nor known, or if two runs contradict each other.
    """
    found = {better: run for run in runs if (better := direction(metric, run.directions)) is not None}
    if len(found) > 1:
        raise BadValue(
            "metric",
            got=metric,
            need="better in one direction in all runs",
            hint=f"max in {found['max'].path}, min in {found['min'].path}",
        )
    return higher_is_better(metric, dict(zip((metric,), found, strict=False)))


@dataclass(eq=False)
class Group:
    """The runs of one setting (equal configs except for the seed), sorted by seed.

    label: the setting's name, different from the labels of other groups. setting: its config with dotted keys.
    """

    label: str
    setting: dict[str, Any]
    runs: list[RunRecord] = field(default_factory=list)

    @property
    def method(self) -> str:
        return method_of(self.setting)


def load_run(path: str | os.PathLike[str]) -> RunRecord:
    """The run in a directory. Raises BadValue if it is no run directory or its `config.yaml` cannot be read."""
    folder = Path(path)
    if not is_run(folder):
        raise BadValue("path", got=folder, need="a run's directory (config.yaml and metrics.jsonl)")
    try:
        config = _config(folder / "config.yaml")
    except UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadValue("path", got=folder, need="a run with a readable config.yaml", hint=reason[:160]) from None
    run = RunRecord(folder, config, np.empty(0, dtype=np.int64), {}, _summary(folder / "summary.json"))
    rows = run._rows("metrics.jsonl", lambda row: isinstance(r := row.get("round"), int) and 0 <= r < 2**53)
    run.rounds, run.metrics = _columns(rows)
    run.nodes = _of_nodes(rows)
    run.directions = _directions(run)
    run.diverged = not run.finished and (folder / DIVERGED).is_file()
    return run


def read_runs(paths: Paths) -> tuple[list[RunRecord], list[str]]:
    """Reads all runs at and below the given paths; returns (readable runs, one sentence on each unreadable run).

    The sentences are also logged as warnings. Raises BadConfig if there is no readable run, and BadValue as `find_runs`
    does.
    """
    runs, left_out = [], []
    for path in find_runs(paths):
        try:
            runs.append(load_run(path))
        except BadValue as error:
            left_out.append(f"{path} is left out: {error.hint}")
            log.warning(left_out[-1])
    if not runs:
        raise BadConfig(left_out)
    return runs, left_out


def readable(folder: Path) -> RunRecord | None:
    """The run in a directory; None if there is none or it cannot be read."""
    try:
        return load_run(folder)
    except BadValue:
        return None


def is_run(folder: Path) -> bool:
    """Whether a directory is that of a run: it has the files config.yaml and metrics.jsonl."""
    return (folder / "config.yaml").is_file() and (folder / "metrics.jsonl").is_file()


def paths_of(runs: Runs) -> list[str | os.PathLike[str]]:
    """The run directories of one or several runs: paths, results of `raylfl.run`, or runs of `raylfl.load`."""
    several = isinstance(runs, Iterable) and not isinstance(runs, (str, os.PathLike))
    return [getattr(run, "run_dir", None) or getattr(run, "path", run) for run in (runs if several else [runs])]


def find_runs(paths: Paths) -> list[Path]:
    """The run directories at and below the given paths or URLs, each once, sorted within each path.

    A directory without runs (such as a report's directory in `runs/digits/*`) is skipped if another path has some.
    Raises BadValue for a path that is no directory, and if no path has a run.
    """
    given = [local_view(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found: dict[Path, Path] = {}
    below_all = [sorted(_below(path)) for path in given]
    for path, below in zip(given, below_all, strict=True):
        if not below and not (path.is_dir() and any(below_all)):
            hint = f"{path} holds none" if path.is_dir() else f"there is no directory {path}"
            need = "run directories, or directories that hold some (config.yaml with metrics.jsonl)"
            raise BadValue("path", got=path, need=need, hint=hint)
        for folder in below:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _below(top: Path) -> Iterable[Path]:
    for folder, names, _ in os.walk(top):
        if is_run(Path(folder)):
            names.clear()  # a run directory contains no other runs
            yield Path(folder)
        names[:] = [name for name in names if not name.startswith(".")]


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """The runs grouped by setting: the runs of a group differ only in their seed.

    Groups are sorted by the values of scenario keys (data, participation, ...), then of method and tuned keys.

    Of two runs with equal setting and seed only the one with more rounds is kept (if equal, the one with the later
    path). They are the same experiment: pooling both would make the spread over seeds too small.
    """
    groups: dict[str, Group] = {}
    for run in runs:
        groups.setdefault(canonical(run.setting), Group("", run.setting)).runs.append(run)
    for group in groups.values():
        by_seed: dict[str, RunRecord] = {}
        for run in sorted(group.runs, key=lambda run: (len(run.rounds), str(run.path))):
            by_seed[canonical(run.seed)] = run
        group.runs = sorted(by_seed.values(), key=lambda run: order_key(run.seed))
    keys = sorted(varying([group.setting for group in groups.values()]), key=lambda key: not is_scenario(key))
    ordered = sorted(groups.values(), key=lambda group: [order_key(group.setting.get(key)) for key in keys])
    for group, label in zip(ordered, labels([group.setting for group in ordered]), strict=True):
        group.label = label
    return ordered


def _config(path: Path) -> dict[str, Any]:
    """The config in a config.yaml. Raises one of the errors UNREADABLE if it cannot be read or is no config."""
    text = path.read_text(encoding="utf-8")
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):  # libyaml's loader would overflow the C stack
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"config.yaml is nested deeper than {DEEPEST} levels")
    config = _sound(yaml.load(text, Loader=_Loader) or {})
    if not isinstance(config, dict):
        raise ValueError(f"config.yaml must be a mapping, but is {type(config).__name__}")
    refuse_other(config.pop(KEY, FORMAT), path.name)
    for key, most in (("num_clients", 10**7), ("rounds", 2**53)):
        value = config.get(key)
        if value is not None and not (isinstance(value, int) and 0 <= value <= most):
            raise ValueError(f"config.yaml has {key}={value!r}, but it must be a whole number up to {most}")
    return config


def _sound(value: Any) -> Any:
    """Returns `value` unchanged. Raises ValueError for too deep nesting, too many values, or a too long integer."""
    waiting, seen = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST or seen > LARGEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels, or more than {LARGEST} values")
        if isinstance(item, int) and item.bit_length() > 1000:
            raise ValueError("a number of hundreds of digits")
        if isinstance(item, dict | list):
            waiting += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]
    return value


def _summary(path: Path) -> dict[str, Any]:
    try:
        data = _sound(json.loads(path.read_text(encoding="utf-8")))
    except UNREADABLE:  # not yet written, or being written
        return {}
    return data if isinstance(data, dict) else {}


def _directions(run: RunRecord) -> dict[str, Better]:
    """The better directions in the run's directions.json, and those that its config states, which take precedence."""
    logged = run._json(DIRECTIONS, lambda content: stated_directions({"metrics": content})) or {}
    try:
        return {**logged, **stated_directions(run.config)}
    except BadValue:  # a config that was changed by hand
        return logged


def _class_counts(content: Any) -> tuple[list[str], Ints] | None:
    if not content["counts"]:
        return None
    counts, names = np.array(content["counts"]), [str(name) for name in content["classes"]]
    if counts.dtype.kind != "i" or counts.shape != (len(counts), len(names)) or counts.min() < 0:
        raise ValueError("the counts are not a table of whole numbers")
    return names, counts


def _columns(rows: Sequence[dict[str, Any]]) -> tuple[Ints, dict[str, Floats]]:
    """The R round numbers [R], and metric -> values [R]; of several rows of one round, the last one counts."""
    by_round = {row["round"]: row for row in rows}
    ordered = [by_round[r] for r in sorted(by_round)]
    names = dict.fromkeys(name for row in ordered for name in numbers_of(row))
    names.pop("round", None)
    metrics = {name: np.array([_number(row.get(name)) for row in ordered]) for name in names}
    return np.array([row["round"] for row in ordered], dtype=np.int64), metrics


def _of_nodes(rows: Sequence[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """The last measured values of the nodes, all from one row: metric -> node -> value."""
    measured = (row["per_client"] for row in reversed(rows) if isinstance(row.get("per_client"), dict))
    for found in measured:
        values = {
            name.removeprefix(OF_NODES): {int(node): _number(v) for node, v in each.items() if node.isdecimal()}
            for name, each in found.items()
            if name.startswith(OF_NODES) and isinstance(each, dict)
        }
        if values:
            return values
    return {}


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.inf
    except OverflowError:  # a whole number beyond all floats
        return math.inf
