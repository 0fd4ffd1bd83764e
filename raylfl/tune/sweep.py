"""`raylfl sweep`: asks for the runs of a sweep file; writes tables and a report.

runs/<name>/ holds sweep.yaml (the whole sweep), trials.jsonl (the journal), runs.csv and settings.csv, report/, and
ordinary run directories: <algorithm>-s<seed>-<digest>/. A second sweep finds the runs that it needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.components.extras import require
from raylfl.config.groups.records import LoggingConfig
from raylfl.config.text import FORMAT, KEY, dump, parse
from raylfl.config.urls import join
from raylfl.errors import BadConfig, RaylflError, Say
from raylfl.execution.planned import prepare
from raylfl.python.console import rows_table, shown, working
from raylfl.report.labels import canonical, show_value
from raylfl.report.runs import is_run
from raylfl.runtime.ray.resources import capacity, count_workers, nodes_of_cluster
from raylfl.runtime.records.lines import lines
from raylfl.runtime.records.mirror import Mirror, begin, clear, copy_again, exists, local_folder, mirror_of
from raylfl.runtime.records.provenance import require_trust, sign
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.stopping import sigterm_interrupts
from raylfl.tune.journal import FAILED, NAME, Journal, SettingRow, score_text, write_tables
from raylfl.tune.resources import share_gpus
from raylfl.tune.spec import (
    LATER,
    Sweep,
    apply_overrides,
    check_settings,
    load_sweep,
    make_sweep,
    read_content,
    shown_choices,
)

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment
    from raylfl.tune.tuner import SweepRun

MOST = 20  # largest number of settings in the terminal; settings.csv has all


@dataclass(frozen=True)
class SweepResult:
    """The result of a complete sweep: the settings, the best first, and id of a failed trial -> reason."""

    folder: Path
    settings: list[SettingRow]
    failed: dict[str, str]
    sweep: Sweep


def sweep(source: str | Path, overrides: Sequence[str] = (), say: Say = print) -> SweepResult:
    """Runs the sweep of a file, given by its path or its name under conf/sweep/; existing runs are not made again.

    overrides: `key=value` for keys of the sweep or the config. Raises BadConfig, before the first trial, for mistakes
    and for resources that the cluster lacks.
    """
    spec = load_sweep(source, overrides)
    logging = LoggingConfig(**{k: v for k, v in (spec.base.get("logging") or {}).items() if k == "dir"})
    url = None if logging.url is None else join(logging.url, spec.name)
    return carry_out(spec, check_sweep(spec), logging.folder / spec.name, url, say)


def resume(
    path: str | Path, overrides: Sequence[str] = (), say: Say = print, take_over: bool = False, trust: bool = False
) -> SweepResult:
    """Continues the sweep in a folder or at a URL, without its file. Raises BadConfig.

    overrides: `key=value` for `concurrent`, `retries`, `samples` and keys of `runtime`. take_over: whether a sweep at a
    URL is taken from the process that owns it. trust: whether classes may be imported although the sweep was not
    written here.
    """
    folder = local_folder(path, take_over)
    content = read_content(folder / "sweep.yaml")
    if not trust:
        require_trust(folder / "sweep.yaml", content, (), f"raylfl sweep --resume {folder} --trust")
    for item in overrides:
        key = item.partition("=")[0]
        if key not in LATER and not key.startswith("runtime."):
            raise BadConfig(
                f"{key} defines the sweep: when a sweep is resumed, only {', '.join(LATER)} and runtime.* may change"
            )
    spec = make_sweep(apply_overrides(content, overrides))
    mirror = mirror_of(folder)
    return carry_out(spec, check_sweep(spec), folder, None if mirror is None else mirror.url, say)


def check_sweep(spec: Sweep) -> Experiment:
    """Checks the settings of a sweep, and returns the experiment of the first one, of which a step is tried.

    Raises BadConfig for mistakes, if runs do not measure the sweep's metric, and if clients' data are bound to certain
    nodes, because a sweep cannot place trials there.
    """

    if spec.options.search == "optuna":
        require("optuna", what="search=optuna", instead="search=random")
    from raylfl.runtime.measured import require_measured  # imports torch

    config = check_settings(spec, spec.points())
    config.logging.check_shared()
    experiment = prepare(config)
    require_measured(spec.score.metric, experiment)
    nodes = experiment.setup.nodes
    if nodes is not None and config.runtime.backend == "ray":
        data = config.resolved["data"]
        key, value = next((key, data[key]) for key in ("name", "class_path") if data.get(key) is not None)
        raise BadConfig(
            f"data.{key}={value}: the clients' data are on nodes {', '.join(sorted(set(nodes)))}, and a sweep cannot "
            "place trials there: use raylfl run with one setting after the other, or data that every node can read"
        )
    return experiment


def defining(content: dict[str, Any]) -> Any:
    """The content of a sweep.yaml without the keys that may change when the sweep continues."""
    base = {key: value for key, value in content["base"].items() if key not in ("runtime", "logging")}
    fixed = {key: value for key, value in content.items() if key not in LATER} | {"base": base}
    return parse(dump(fixed))


def write_content(spec: Sweep, folder: Path, say: Say) -> None:
    """Writes sweep.yaml. The journal of a sweep with another content is deleted: only its runs are used."""
    path = folder / "sweep.yaml"
    if path.is_file() and defining(read_content(path)) != defining(spec.content):
        say(f"{shown(folder)} had another sweep: its runs are used where they are equal")
        (folder / NAME).unlink(missing_ok=True)
    path.write_text(dump({KEY: FORMAT, **spec.content}))
    sign(path, spec.content)


def carry_out(spec: Sweep, experiment: Experiment, folder: Path, url: str | None, say: Say) -> SweepResult:
    """Makes a sweep; writes its tables at the end, also if it was interrupted, which raises RaylflError.

    folder: created once it is known that the resources suffice. url: to which it is copied; None: none.
    """
    from raylfl.runtime.ray.cluster import cluster_for
    from raylfl.tune.tuner import SCRATCH, SweepRun

    runtime = experiment.config.runtime
    if runtime.workers is None:  # each run in one process, which has the same bits
        runtime = replace(runtime, backend="local")
    with cluster_for(runtime) as cluster:
        cluster.ready()
        count_workers(share_gpus(runtime, nodes_of_cluster()), 1, nodes_of_cluster())
        with opened(folder, url, say) as mirror, sigterm_interrupts():
            write_content(spec, folder, say)
            journal = Journal(folder)
            if journal.damaged:
                say(f"trials.jsonl is damaged: {lines(journal.damaged)} cannot be read; those trials are planned again")
            run = SweepRun(spec, folder, journal, runtime, say, mirror)
            plan(run)
            if mirror is not None:
                mirror.commit(say)
            say(announcement(run))
            try:
                run.carry_out()
            except KeyboardInterrupt:
                raise RaylflError(f"stopped: raylfl sweep --resume {folder if url is None else url}") from None
            finally:
                settings = write_tables(spec, folder, journal)
            shutil.rmtree(folder / SCRATCH, ignore_errors=True)
            if mirror is not None:
                clear(join(mirror.url, SCRATCH))
    ends = {trial.id: run.end_of(trial) for trial in run.trials}
    failed = {name: end.reason for name, end in ends.items() if end.state == FAILED}
    return SweepResult(folder, settings, failed, spec)


def plan(run: SweepRun) -> None:
    """Plans the trials of a sweep. With Optuna, these are the trials in the journal; `Studies` proposes the others."""
    known = [(trial.setting, trial.values) for trial in run.journal.trials.values()]
    for setting, values in known if run.searching else enumerate(run.sweep.points()):
        run.plan(setting, values)


def announcement(run: SweepRun) -> str:
    """A line about a sweep: `digits_lr: settings 9, seeds 3, rounds 40; settings at once 2, processes 1 each`."""
    sweep, fit = run.sweep, capacity(run.bundles, nodes_of_cluster())
    at_once = min(sweep.options.concurrent or fit, fit, run.total)
    each = f"processes {run.processes}" if run.runtime.backend == "local" else f"workers {len(run.bundles) - 1}"
    count = f"settings {run.total}, seeds {len(sweep.seeds)}, rounds {sweep.rounds}"
    return f"{sweep.name}: {count}; settings at once {at_once}, {each} each -> {shown(run.folder)}"


@contextmanager
def opened(folder: Path, url: str | None, say: Say) -> Iterator[Mirror | None]:
    """A context with the lock on a sweep's folder, created if missing, and its mirror; then files are copied."""
    if url is not None and exists(url):
        folder = local_folder(url)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(
            f"logging.dir={folder.parent}: cannot make a sweep's directory there ({error.strerror})"
        ) from error
    if url is not None and mirror_of(folder) is None:
        begin(folder, url)
    with closing(RunDirectory(folder).open()) as directory:
        try:
            yield directory.mirror
        finally:
            directory.copy_to_url(say)


def finish(result: SweepResult, say: Say) -> int:
    """Writes the report and prints table, paths and failed trials; returns the exit code, 1 if a trial failed."""
    settings, score = result.settings, result.sweep.score
    columns = {key: [row.trial.values.get(key) for row in settings] for key in result.sweep.space.keys}
    keys = [key for key, values in columns.items() if len(set(map(canonical, values))) > 1]
    rows_table(
        [
            {
                "setting": f"{row.trial.setting:03d}",
                **{key: "" if columns[key][k] is None else show_value(columns[key][k]) for key in keys},
                "seeds": f"{row.finished_runs}/{len(row.runs)}",
                "rounds": row.rounds,
                f"{score.metric}, {score.score}": score_text(row.score),
            }
            for k, row in enumerate(settings[:MOST])
        ]
    )
    if len(settings) > MOST:
        say(f"the best {MOST} of {len(settings)} settings: {shown(result.folder / 'settings.csv')} has all")
    if runs := [path for row in settings for run in row.runs if is_run(path := result.folder / run.id)]:
        from raylfl.report.page import write_report

        with working("drawing the report"):
            page = write_report(runs, result.folder / "report", **shown_choices(result.folder))
        say(f"report   {shown(page)}")
    say(f"sweep    {shown(result.folder)}")
    if (url := copy_again(result.folder)) is not None:
        say(f"copied   {url}")
    for trial, reason in result.failed.items():
        say(f"failed   {trial}: {reason.splitlines()[0] if reason else 'see the log.txt of its runs'}")
    if result.failed:
        say(f"again    raylfl sweep --resume {shown(result.folder)}")
    return int(bool(result.failed))
