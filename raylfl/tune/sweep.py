"""`raylfl sweep`: runs the trials of a sweep file, writes tables and a report, and resumes interrupted sweeps.

runs/<name>-<date>-<time>/ holds sweep.yaml (the whole sweep), trials.jsonl (the journal), runs.csv and settings.csv,
report/, and ordinary run directories: <setting>-<algorithm>-s<seed>/.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylfl.components.extras import require
from raylfl.config.formats import FORMAT, KEY
from raylfl.config.groups.records import LoggingConfig
from raylfl.config.layers import merge_layer, override, tree
from raylfl.config.text import dump, parse
from raylfl.config.urls import is_url, join
from raylfl.errors import BadConfig, RaylflError, Say
from raylfl.execution.resources import capacity, choose_need
from raylfl.python.console import shown
from raylfl.runtime.measured import require_measured
from raylfl.runtime.ray.resources import nodes_of_cluster
from raylfl.runtime.records.files import require_inside, separate
from raylfl.runtime.records.lines import lines
from raylfl.runtime.records.locks import Locks
from raylfl.runtime.records.mirror import Mirror, begin, clear, local_folder, mirror_of
from raylfl.runtime.records.provenance import require_trust, sign
from raylfl.runtime.stopping import sigterm_interrupts
from raylfl.tune.journal import FAILED, FINISHED, Journal
from raylfl.tune.nodes import check_nodes
from raylfl.tune.schema import LATER
from raylfl.tune.spec import Sweep, check_settings, load_sweep, make_sweep, read_content
from raylfl.tune.table import SettingRow, setting_rows, survivors, write_tables

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment
    from raylfl.tune.stage import StageRun


@dataclass(frozen=True)
class SweepResult:
    """The result of a complete sweep.

    settings: the settings of the last stage, the best first. failed: id of a failed trial -> reason.
    """

    folder: Path
    settings: list[SettingRow]
    failed: dict[str, str]
    sweep: Sweep


def sweep(source: str | Path, overrides: Sequence[str] = (), say: Say = print, or_resume: bool = False) -> SweepResult:
    """Runs the sweep of a file, given by its path or its name under conf/sweep/.

    overrides: `key=value` for keys of the sweep or the config. say: called with one line for the user. or_resume:
    whether to continue the newest sweep with this content, if there is one. Raises BadConfig, before the first trial,
    for mistakes and for resources that the cluster lacks.
    """
    spec = load_sweep(source, overrides)
    folder = existing_folder(spec) if or_resume else None
    if folder is not None:
        say(f"continues {shown(folder)}")
    return carry_out(spec, check_sweep(spec), folder, say)


def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    say: Say = print,
    take_over: bool = False,
    trust: bool = False,
) -> SweepResult:
    """Resumes a sweep: ended trials are kept; open and failed trials continue from their checkpoints.

    path: the sweep's folder or URL. overrides: `key=value` for `concurrent`, `retries` and keys of `runtime`; raises
    BadConfig for other keys. say: called with one line for the user. take_over: whether a sweep at a URL is taken from
    the process that owns it. trust: whether the classes that its config names may be imported although the sweep was
    not written on this machine.
    """
    folder = local_folder(path, take_over)
    content = read_content(folder / "sweep.yaml")
    if not trust:
        address = path if is_url(path) else folder
        require_trust(folder / "sweep.yaml", content, (), f"raylfl sweep --resume {address} --trust", address)
    for item in overrides:
        key = item.partition("=")[0]
        if key not in LATER and not key.startswith("runtime."):
            raise BadConfig(
                f"{key} defines the sweep: when a sweep is resumed, only {', '.join(LATER)} and runtime.* may change"
            )
    spec = make_sweep(apply_overrides(content, overrides))
    return carry_out(spec, check_sweep(spec), folder, say)


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the content of sweep.yaml with overrides such as `concurrent=2` or `runtime.workers=1` applied."""
    base = dict(content["base"])
    layer = tree(override(item) for item in overrides)
    sweep_options = {key: layer.pop(key) for key in LATER if key in layer}
    merge_layer(base, layer)
    return {**content, **sweep_options, "base": base}


def check_sweep(spec: Sweep) -> Experiment:
    """Checks the settings of a sweep, and returns the experiment of the first setting.

    For the first setting, a training step and an evaluation are tried as well. Of many settings only some are checked,
    see `check_settings`. Raises BadConfig for mistakes, and if runs do not measure the sweep's metric.
    """
    from raylfl.execution.prepare import prepare

    if spec.options.search == "optuna":
        require("optuna", what="search=optuna", instead="search=random")
    config = check_settings(spec, spec.points())
    config.logging.check_shared()
    experiment = prepare(config)
    require_measured(spec.score.metric, experiment)
    spec.score.rank_key(0.0)  # raises BadValue if it is not known whether the metric is better high or low
    refuse_data_on_nodes(experiment)
    return experiment


def refuse_data_on_nodes(experiment: Experiment) -> None:
    """Raises BadConfig if clients' data are bound to certain nodes, because a sweep cannot place trials there."""
    config, nodes = experiment.config, experiment.setup.nodes
    if nodes is not None and config.runtime.backend == "ray":
        data = config.resolved["data"]
        key, value = next((key, data[key]) for key in ("name", "class_path") if data.get(key) is not None)
        raise BadConfig(
            f"data.{key}={value}: the clients' data are on nodes {', '.join(sorted(set(nodes)))}, and a sweep cannot "
            "place trials there: use raylfl run with one setting after the other, or data that every node can read"
        )


def logging_of(spec: Sweep) -> LoggingConfig:
    """The places of a sweep's folder, from `logging.dir`."""
    return LoggingConfig(**{key: value for key, value in (spec.base.get("logging") or {}).items() if key == "dir"})


def existing_folder(spec: Sweep) -> Path | None:
    """The newest folder of a sweep with this content; keys that a resumed sweep may change can differ.

    Raises BadConfig if `logging.dir` is a URL: sweeps are looked for in folders only.
    """
    logging = logging_of(spec)
    if logging.url is not None:
        raise BadConfig(f"logging.dir={logging.url}: --or-resume looks in folders; raylfl sweep --resume URL continues")

    def defining(content: dict[str, Any]) -> Any:
        base = {key: value for key, value in content["base"].items() if key not in ("runtime", "logging")}
        fixed = {key: value for key, value in content.items() if key not in LATER} | {"base": base}
        return parse(dump(fixed))

    files = sorted(logging.folder.glob(f"{spec.name}-*/sweep.yaml"), reverse=True)
    return next((file.parent for file in files if defining(read_content(file)) == defining(spec.content)), None)


def new_folder(spec: Sweep) -> Path:
    """Creates and returns a new folder <logging.dir>/<name>-<date>-<time> with sweep.yaml.

    If `logging.dir` is a URL, the folder's URL is claimed as well. Raises BadConfig if the folder cannot be created.
    """
    logging = logging_of(spec)
    base = logging.folder
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        folder = base / f"{spec.name}-{stamp}{f'-{attempt}' if attempt else ''}"
        try:
            folder.mkdir(parents=True)
            if logging.url is not None and not begin(folder, join(logging.url, folder.name), shlex.join(sys.argv)):
                continue
            (folder / "sweep.yaml").write_text(dump({KEY: FORMAT, **spec.content}))
            sign(folder / "sweep.yaml", spec.content)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise BadConfig(f"logging.dir={base}: cannot make a sweep's directory there ({error.strerror})") from error
    raise BadConfig(f"logging.dir={base} has too many sweeps that started in this second: try again")


def carry_out(spec: Sweep, experiment: Experiment, folder: Path | None, say: Say) -> SweepResult:
    """Runs all stages of a sweep; writes its tables at the end, also if a stage was interrupted.

    experiment: the experiment of one setting, which gives runtime and number of clients. folder: the sweep's folder;
    None: a new one, created once it is known that the resources suffice. Raises RaylflError if the sweep is
    interrupted. If Ray is lost, ends the process with a message.
    """
    from raylfl.runtime.ray.cluster import cluster_for
    from raylfl.tune.watch import watched

    runtime, clients = experiment.config.runtime, experiment.clients
    with cluster_for(runtime) as cluster:
        cluster.ready()
        check_nodes(spec, choose_need(runtime, clients, 1, 1, None, nodes_of_cluster()).bundles)
        folder = folder or new_folder(spec)
        with locked(folder), mirrored(folder, say) as mirror, sigterm_interrupts():
            journal = Journal(folder)
            if journal.damaged:
                say(f"trials.jsonl is damaged: {lines(journal.damaged)} cannot be read; those trials are planned again")
            command = f"raylfl sweep --resume {folder if mirror is None else mirror.url}"
            tables = partial(write_tables, spec, folder, journal)
            try:
                with watched(cluster, command, tables):
                    run_stages(spec, experiment, folder, journal, say, mirror)
            except KeyboardInterrupt:
                raise RaylflError(f"stopped: {command}") from None
            finally:
                settings = tables()
    failed = {name: end.reason for name, end in journal.ends.items() if end.state == FAILED}
    return SweepResult(folder, settings, failed, spec)


def run_stages(
    spec: Sweep, experiment: Experiment, folder: Path, journal: Journal, say: Say, mirror: Mirror | None
) -> None:
    """Plans and runs one stage after the other. Raises KeyboardInterrupt if a stage is interrupted."""
    from raylfl.tune.stage import SCRATCH, StageRun, trials_of

    runtime, concurrent = experiment.config.runtime, spec.options.concurrent
    for index in range(len(spec.stages)):
        plan(spec, index, folder, journal)
        if mirror is not None:
            mirror.commit(say)
        settings, seeds, nodes = trials_of(spec, index, journal), len(spec.seeds(index)), nodes_of_cluster()
        need = choose_need(runtime, experiment.clients, seeds, settings, concurrent, nodes)
        stage = StageRun(spec, index, folder, journal, need, say, mirror)
        say(announcement(stage, capacity(need.bundles, nodes)))
        stage.carry_out()
    shutil.rmtree(folder / SCRATCH, ignore_errors=True)
    if mirror is not None:
        clear(join(mirror.url, SCRATCH))


def announcement(stage: StageRun, fit: int) -> str:
    """A line about a stage: `digits_lr: 9 settings x 3 seeds of 40 rounds, 2 settings at once, each in 1 process`.

    fit: the number of trials that fit at once.
    """
    options, seeds, need = stage.sweep.options, len(stage.sweep.seeds(stage.index)), stage.need
    servers = quantity(need.processes, "server")
    each = f"{servers} + {quantity(need.processes * need.workers, 'worker')}"
    if len(need.bundles) == need.processes:
        each = f"in {quantity(need.processes, 'process')}"
    count = f"{quantity(stage.total, 'setting')} x {quantity(seeds, 'seed')} of {quantity(stage.rounds, 'round')}"
    at_once = min(options.concurrent or fit, fit, stage.total)
    return f"{stage.sweep.name}: {count}, {quantity(at_once, 'setting')} at once, each {each} -> {shown(stage.folder)}"


def quantity(count: int, what: str) -> str:
    """A number with its noun `what`, in the plural unless it is 1: `1 seed`, `2 seeds`."""
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{count} {what if count == 1 else plural}"


def plan(spec: Sweep, index: int, folder: Path, journal: Journal) -> None:
    """Writes the trials of stage `index` to the journal.

    The first stage has all settings, a later stage the settings close to the best of the stage before. With Optuna,
    `Studies` writes the trials of the first stage later. Raises RaylflError if no setting finished the previous stage.
    """
    if index == 0:
        if spec.options.search == "random":
            journal.plan(*(spec.trial(0, setting, values) for setting, values in enumerate(spec.points())))
        return
    within = spec.stages[index - 1].within
    assert within is not None
    rows = survivors(spec, setting_rows(spec, folder, journal, index - 1), within)
    if not rows:
        raise RaylflError(f"no setting finished its {spec.stages[index - 1].rounds} rounds: see {folder / 'runs.csv'}")
    for row in rows:
        parents = {run.seed: run.id for run in row.runs if run.state == FINISHED}
        journal.plan(spec.trial(index, row.setting, row.trial.values, parents))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context manager that holds the lock on a sweep's folder, if its file system has locks.

    Raises BadConfig if another process holds the lock, or a symbolic link in the folder leads out of it. Files that are
    hard links are replaced by copies, as in `RunDirectory.open`.
    """
    require_inside(folder)
    locks, free = Locks(folder), True
    with suppress(OSError):  # a file system without locks: continue unprotected
        free = locks.take(".lock")
    if not free:
        raise BadConfig(f"{folder} is in use by another process: wait for it, or stop it first")
    with closing(locks):
        separate(folder)
        yield


@contextmanager
def mirrored(folder: Path, say: Say) -> Iterator[Mirror | None]:
    """A context manager that gives the mirror that copies a sweep's folder to its URL; None if the sweep has no URL.

    At the end of the context, the files are copied and the mirror is released.
    """
    mirror = mirror_of(folder)
    if mirror is None:
        yield None
        return
    mirror.hold(shlex.join(sys.argv))
    try:
        yield mirror
    finally:
        mirror.complete(say)
        mirror.release()
