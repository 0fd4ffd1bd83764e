"""The command `raylfl publish`: adds finished runs to the ledger and regenerates all that is computed from it.

Tables, verdicts, figures and pages are computed from the rows of a ledger: each run of `raylfl reproduce` whose config
is that of a point of the experiment's grid, at scale `paper` if it has scales. An experiment whose cells can be
selected by `--only` may be published in part. Any other name is that of a comparison (`papers.comparisons`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from papers import comparisons
from papers.base import EXPERIMENTS, PaperResult, find, place, plain
from papers.command import write
from papers.gallery import write_pages
from papers.grid import Grid
from papers.ledger import ROWS, Row, add, check_complete, machine_file, read, row
from papers.ledger_rows import LedgerRows
from papers.run_cache import CellConfig, RunCache, decisive
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.execution.planned import is_complete
from raylfl.execution.store import words_of
from raylfl.python.console import say, shown
from raylfl.report.runs import RunRecord, find_runs, load_run

RESULTS, DOCS = Path("results"), Path("docs")
DPI = 100  # resolution of pictures in the repository
MOST, KEYS = 5, 6  # runs with other settings, and their differing keys, that are named
IMAGES = "data.init_args.path="  # in a command, before the path of images


def publish(
    targets: Sequence[str], name: str | None = None, results: Path = RESULTS, docs: Path = DOCS, tell: Any = say
) -> None:
    """Add the runs of the targets to the ledger, and write their experiments' findings and all pages anew.

    targets: without a name those of experiments, whose finished runs are added; with a name directories of runs, at any
    depth; none: only the pages are written. name: of the ledger of these runs. Raises BadConfig for an incomplete run,
    before anything is written, and if no run is left: one with another setting than its cell is left out.
    """
    if name is not None:
        if not targets:
            raise BadConfig(f"--as {name} needs the directories of runs: raylfl publish runs/digits --as {name}")
        runs = [load_run(path) for path in find_runs(targets)]
        experiment = find(name) if name in EXPERIMENTS.names() else None
        _publish(name, experiment, runs, results, machine_file(), tell)
    else:
        for target in targets:
            if Path(target).is_dir() and target not in EXPERIMENTS.names():
                raise BadConfig(f"{target} is a folder: give the name of its runs' ledger with --as")
            experiment = find(target)
            folder = place(experiment.shares or target, experiment, "paper") / "runs"
            runs = [load_run(path) for path in find_runs([folder]) if is_complete(path)] if folder.is_dir() else []
            _publish(target, experiment, runs, results, ROWS, tell)
    for page in write_pages(results, docs):
        tell(f"written  {shown(page)}")


def _publish(
    name: str, experiment: PaperResult | None, runs: Sequence[RunRecord], results: Path, file: str, tell: Any
) -> None:
    folder = results / name
    findings, rows = None, list[Row]()
    if experiment is None:
        comparisons.check_name(name, results)
        rows = [comparisons.row_of(run) for run in runs]
    elif isinstance(experiment, Grid):
        rows = _rows(name, experiment, runs, file != ROWS, tell)
        every = read(folder, rows, file)
        if not every:
            raise BadConfig(f"{name}: no finished runs; `raylfl reproduce {name}` makes them")
        findings = experiment.run(LedgerRows(experiment, every, folder))
    else:
        findings = experiment.run(RunCache(folder))
    changed = add(folder, rows, file)
    if findings is not None:
        words = {word for row in read(folder) for word in row.command.split() if word.startswith(IMAGES)}
        names = sorted(word.removeprefix(IMAGES) for word in words)
        notes = [f"the images are those of {name}, in place of the experiment's own data set" for name in names]
        write(folder, findings, [*findings.notes, *notes], DPI)
    tell(f"{name}  {changed} rows new or changed, {len(rows)} runs checked")


def _rows(name: str, experiment: Grid, runs: Sequence[RunRecord], alone: bool, tell: Any) -> list[Row]:
    """The rows of the runs that have the setting of a point; alone: whether a run's name may be another one."""
    cache = _cache(name, experiment, _images(runs))
    settings: dict[str, list[CellConfig]] = {}
    for point in experiment.points(cache.scale):
        setting = experiment.setting(point, cache.scale)
        settings.setdefault(words_of(setting.label), []).append(setting)
    rows, left_out = [], []
    for run in runs:
        words = run.path.name.rpartition("-s")[0]
        near = settings.get(words) or ([s for group in settings.values() for s in group] if alone else [])
        if not near:
            continue  # of another experiment in the same folder
        check_complete(run)
        fault, cell = _cell(run, near, experiment, cache)
        command = _command(name, experiment, cell, run)
        if fault:
            told = f"{run.path.name} has not the setting of {name}: {fault}"
            left_out.append(f"{told}; `{command}` makes the run of its cell")
            continue
        measures = {key: measure(run) for key, measure in experiment.measures.items()}
        rows.append(row(run, cell, command, measures, experiment.curves, experiment.curve_points))
    if left_out and not rows:
        raise BadConfig(left_out)
    more = [f"and {len(left_out) - MOST} more runs"] if len(left_out) > MOST else []
    for line in [*left_out[:MOST], *more]:
        tell(f"left out  {line}")
    return rows


def _cell(run: RunRecord, near: Sequence[CellConfig], grid: Grid, cache: RunCache) -> tuple[str, Mapping[str, Any]]:
    """What is wrong with a run, if something is, and the ledger's cell of the nearest setting."""
    config, seed = load_config(run.config).resolved, run.config["seed"]
    if seed not in grid.seeds:
        return f"seed={seed} is none of {', '.join(map(str, grid.seeds))}", near[0].cell
    pairs = ((differences(config, cache.config_of(s, seed)), s.cell) for s in near)
    keys, cell = min(pairs, key=lambda pair: len(pair[0]))
    rest = f", and {len(keys) - KEYS} more keys" if len(keys) > KEYS else ""
    return ", ".join(keys[:KEYS]) + rest, cell


def differences(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which a run's resolved config differs from that of a setting, each with both values, as text."""
    actual, expected = decisive(config), decisive(other)
    pairs = {key: (actual.get(key, "nothing"), expected.get(key, "nothing")) for key in sorted({*actual, *expected})}
    texts = {key: ["null" if value is None else str(value) for value in pair] for key, pair in pairs.items()}
    return [f"{key}={a} in place of {b}" for key, (a, b) in texts.items() if pairs[key][0] != pairs[key][1]]


def _cache(name: str, experiment: Grid, images: str | None) -> RunCache:
    """A cache with the configs of the experiment's runs, perhaps on images in place of its data set."""
    scale = "paper" if experiment.scales else "smoke"
    return RunCache(place(name, experiment, scale), scale, ["data=image_folder", f"{IMAGES}{images}"] if images else [])


def _images(runs: Sequence[RunRecord]) -> str | None:
    """The path of the images that these runs have in place of the experiment's own data set, if they have some."""
    data = [run.config["data"] for run in runs]
    paths = {config["init_args"]["path"] if config["name"] == "image_folder" else None for config in data}
    if len(paths) > 1:
        names = ", ".join(sorted(path or "the experiment's own data set" for path in paths))
        raise BadConfig(f"the runs have different data: {names}; keep those of one data set in the folder of runs")
    return paths.pop() if paths else None


def _command(name: str, experiment: PaperResult, cell: Mapping[str, Any], run: RunRecord) -> str:
    words = ["raylfl reproduce", name, *(["--scale paper"] if experiment.scales else [])]
    values = {**cell, "seed": run.config["seed"]}
    words += [f"--only {key}={plain(values[key])}" for key in experiment.choices if key in values]
    if images := _images([run]):
        words += ["data=image_folder", f"{IMAGES}{Path(images).name}"]
    return " ".join(words)
