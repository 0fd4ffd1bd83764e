"""A trial: an ordinary run in a process of Ray Tune, with a report to Ray Tune after every round.

Ray Tune starts this process, which is the run's server, in the trial's placement group; worker actors are in the same
group. A repeated trial continues from its run directory.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from raylfl.config.changes import defining, fingerprint_of_config, refuse_changes
from raylfl.config.load import load_config
from raylfl.config.urls import join, staging
from raylfl.errors import BadConfig, NonFinite, RaylflError
from raylfl.parts import Experiment
from raylfl.report.runs import readable
from raylfl.runtime.records.files import atomic_write
from raylfl.runtime.records.manifest import encode
from raylfl.runtime.records.mirror import STATE as STATE_OF_MIRROR
from raylfl.runtime.records.mirror import begin, exists, mirror_of, take
from raylfl.runtime.records.run_dir import RECORDS, RunDirectory
from raylfl.runtime.records.views import here
from raylfl.runtime.round.early_stop import require_recorded
from raylfl.runtime.session import Session, write_records
from raylfl.runtime.workers.backend import Backend, LocalBackend
from raylfl.startup import process
from raylfl.theory.rate import assembled
from raylfl.tune.journal import DIVERGED, FAILED, Trial
from raylfl.tune.schedulers import Pbt
from raylfl.tune.score import SCORE, TIME, WORST, RunningScore
from raylfl.tune.spec import Sweep, make_sweep, show

STATE = ("checkpoints", *RECORDS, "partition.json", "partition_counts.json")  # files and folders of a run's state
# files that a trial keeps when another trial's state replaces its own
OWN = ("wandb_id.txt", "lineage.txt", "log.txt", STATE_OF_MIRROR)
LOCK_SECONDS = 300  # longest wait, in seconds, for the previous owner of a trial's directory or process
Report = Callable[[dict[str, Any], Path | None], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """The data shared by all trials of a sweep.

    content: the content of sweep.yaml. folder: the sweep's folder. workers: the number of workers per trial. command:
    the command line of the sweep; None: that of this process. url: the sweep's URL, to which each trial copies its
    directory, so that nodes need no shared folder; None: no URL. here: the working directory of the sweep; "": that of
    Ray's process.
    """

    content: dict[str, Any]
    folder: str
    workers: int
    command: str | None = None
    url: str | None = None
    here: str = ""

    def place(self, trial_id: str) -> Path:
        """The run directory of a trial on this node, fetched from its URL if the sweep has one.

        It is taken from the node of an earlier attempt, which Ray Tune has ended. Raises RaylflError if this node
        cannot read the sweep's folder.
        """
        if self.url is None:
            if not (Path(self.folder) / "sweep.yaml").is_file():
                raise RaylflError(
                    f"node {platform.node()} cannot read {self.folder}: RAYLFL_RUNS must be a folder that all nodes "
                    "share, or a URL"
                )
            return Path(self.folder) / trial_id
        url = join(self.url, trial_id)
        return take(url, take_over=True) if exists(url) else staging(url)

    def whole(self, trial_id: str) -> Path:
        """The run directory of another trial, for reading; fetched with all files if the sweep has a URL."""
        return Path(self.folder) / trial_id if self.url is None else here(join(self.url, trial_id), whole=True)

    def begin(self, folder: Path) -> None:
        """Makes `folder`, the run directory of a new trial, the owner of the trial's URL, if the sweep has a URL.

        Raises RaylflError if another process claims it at the same time.
        """
        if self.url is None or mirror_of(folder) is not None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if not begin(folder, url := join(self.url, folder.name), self.command or "", take_over=True):
            raise RaylflError(f"{url} was begun by another process at the same time")


def called_by_tune(config: dict[str, Any], job: Job) -> None:
    """The function that Ray Tune calls: runs the trial in config["trial"].

    The trial continues from Ray Tune's checkpoint if there is one, as with PBT.
    """
    process.set_up()
    process.work_in(job.here)
    from ray import tune

    from raylfl.core.threads import limit_threads

    limit_threads(1)
    # a stopped trial must save its state before another trial takes its process; Ray Tune waits for two seconds only
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(LOCK_SECONDS)
    checkpoint = tune.get_checkpoint()

    def report(row: dict[str, Any], snapshot: Path | None) -> None:
        tune.report(row, checkpoint=tune.Checkpoint.from_directory(str(snapshot)) if snapshot else None)

    # PBT copies the whole config of the other trial; only the name is the trial's own
    trial = replace(Trial(**config["trial"]), id=tune.get_context().get_trial_name())
    if checkpoint is None:
        run_trial(job, trial, report)
        return
    with checkpoint.as_directory() as taken:
        run_trial(job, trial, report, Path(taken))


def waiting_trainable(function: Callable[[dict[str, Any]], None]) -> Any:
    """Ray Tune's trainable class for a function, with a cleanup that waits until the function's thread has ended.

    Otherwise Ray Tune would end the process while a stopped trial writes its checkpoint and closes its loggers.
    """
    from ray.train._internal.session import get_session
    from ray.tune.trainable.function_trainable import wrap_function

    class Patient(wrap_function(function)):  # type: ignore[misc]
        def cleanup(self) -> None:
            session = get_session()
            if session is not None:
                with suppress(Exception):  # an error of the trial, which Ray Tune's own cleanup raises
                    session.finish(timeout=LOCK_SECONDS)
            super().cleanup()

    return Patient


def run_trial(job: Job, trial: Trial, report: Report, taken: Path | None = None) -> None:
    """Runs the remaining rounds of a trial and calls `report` after each round.

    Rounds before the first value of the metric are not reported. The last round is reported after the run is complete.
    taken: a snapshot that replaces the run's own state before the start; None: no replacement. If the run diverges or
    its config is invalid, no error is raised, because a repetition would fail as well; the last report has the key
    `state`. Other errors are raised, and Ray Tune repeats the trial.
    """
    sweep, folder = make_sweep(job.content), job.place(trial.id)
    try:
        experiment = assembled(sweep.config(trial, Path(job.folder), job.url))
        if taken is not None:
            with opened(folder, job.command):  # the paused process may still be shutting down
                take_over(folder, taken, experiment.config.resolved, show(trial.values))
        elif trial.parent is not None and not folder.exists():
            continue_from(job.whole(trial.parent), folder, experiment.config.resolved)
        job.begin(folder)
        with opened(folder, job.command) as run_dir:
            try:
                _rounds(sweep, job, trial, experiment, run_dir, report)
            except Exception as error:
                run_dir.log(f"{type(error).__name__}: {error}")
                raise
    except (NonFinite, BadConfig) as error:
        state = DIVERGED if isinstance(error, NonFinite) else FAILED
        report({TIME: trial.rounds, SCORE: WORST, "state": state, "reason": str(error)}, None)


def _rounds(
    sweep: Sweep, job: Job, trial: Trial, experiment: Experiment, run_dir: RunDirectory, report: Report
) -> None:
    running = RunningScore(sweep.score, trial.rounds)
    every = sweep.scheduler.every(trial.rounds) if isinstance(sweep.scheduler, Pbt) else 0
    last: dict[str, Any] | None = None
    with closing(rows(experiment, run_dir, job.workers, trial.rounds)) as stream:
        for metrics, fresh in stream:
            score, done = running.update(metrics), metrics["round"] + 1
            if score is None:
                if fresh:  # rows of a file lack non-finite values
                    require_recorded("metric", sweep.score.metric, metrics)
                continue
            last = {TIME: done, SCORE: score, sweep.score.metric: metrics.get(sweep.score.metric)}
            if done < trial.rounds and (fresh or not every):  # PBT needs reports of increasing rounds
                due = every and done % every == 0
                with snapshot(run_dir.path) if due else nullcontext() as copy:
                    report(last, copy)
    if last is None:
        raise BadConfig(f"metric={sweep.score.metric} was never measured in {run_dir.path.name}")
    report(last, None)  # at the end, so that a trial stopped at its last round is complete


Rows = Generator[tuple[dict[str, Any], bool], None, None]


def rows(experiment: Experiment, run_dir: RunDirectory, workers: int, rounds: int) -> Rows:
    """Runs a trial and yields (metrics, whether they are new) of each round, including rounds of earlier attempts.

    workers: the number of workers. rounds: the length of the run; a complete run is only read. If the generator is
    closed early, a checkpoint is saved.
    """
    before = run_dir.metrics()
    earlier = readable(run_dir.path)
    if earlier is not None and earlier.complete(rounds):
        yield from ((metrics, False) for metrics in before)
        run_dir.copied(run_dir.log)
        run_dir.require_copied()
        return
    resume = any((run_dir.path / "checkpoints").glob("round_*"))
    if not resume:
        run_dir.truncate({})
    write_records(experiment, run_dir)
    backend = make_backend(experiment, run_dir, workers)
    try:
        session = Session(experiment, backend, run_dir)
        with closing(cast("Generator[dict[str, Any], None, None]", session.rows(resume))) as stream:
            for metrics in stream:
                try:
                    yield metrics, metrics not in before[metrics["round"] : metrics["round"] + 1]
                except GeneratorExit:  # stopped by the scheduler; the run can be resumed by hand
                    session.save()
                    raise
    finally:
        backend.close()


def make_backend(experiment: Experiment, run_dir: RunDirectory, workers: int) -> Backend:
    """The backend of a trial: a worker in this process, or `workers` Ray actors in the trial's placement group."""
    if experiment.config.runtime.backend == "local":
        return LocalBackend(experiment.setup)
    from raylfl.runtime.ray.actors import start_workers
    from raylfl.runtime.ray.backend import RayBackend
    from raylfl.runtime.ray.stored import StoredExperiment

    assert experiment.setup.nodes is None  # refused before the first trial
    actors = start_workers(experiment.config.runtime, [None] * workers)
    return RayBackend(experiment, StoredExperiment.put(experiment, workers), actors, run_dir.log)


def retry_while_locked(call: Callable[[], T]) -> T:
    """The result of `call`, which is repeated while it raises BadConfig, for LOCK_SECONDS at most."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return call()
        except BadConfig:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def opened(folder: Path, command: str | None) -> closing[RunDirectory]:
    """Opens the run directory `folder`, created if missing; returns a context manager that closes it at the end.

    Waits until the process of an earlier attempt has ended. command: the command line that the directory records; None:
    that of this process.
    """
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    return closing(retry_while_locked(lambda: RunDirectory(folder).open(command)))


# -- copies of a run's state -------------------------------------------------------------------------------------


def copy_state(source: Path, target: Path) -> None:
    """Copies the state of the run in `source` into the new run directory `target`.

    The copy is atomic: `target` exists only once the copy is complete.
    """
    aside = target.with_name(f".{target.name}.incoming")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name in STATE:
        if (source / name).is_dir():
            shutil.copytree(source / name, aside / name)
        elif (source / name).exists():
            shutil.copy2(source / name, aside / name)
    aside.rename(target)


def continue_from(parent: Path, folder: Path, resolved: dict[str, Any]) -> None:
    """Copies the state of a shorter run of the same setting to `folder`; does nothing if it cannot be continued.

    parent: the run directory of the shorter run. resolved: the config of the longer run.
    """
    try:
        refuse_changes(load_config(parent / "config.yaml").resolved, resolved)
    except BadConfig:  # its values have phases, which end at fractions of all rounds
        return
    copy_state(parent, folder)


def take_over(folder: Path, taken: Path, resolved: dict[str, Any], values: str) -> None:
    """Replaces the state of the run in `folder` by the snapshot `taken`, of this or another run.

    resolved: the run's new config. It replaces the config in the checkpoints, because a resumed run refuses another
    config. values: the new values as text, for lineage.txt. External logs (wandb) continue.
    """
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    copy_state(taken, folder)
    for name in OWN:
        if (old / name).exists():
            shutil.copy2(old / name, folder / name)
    for path in (folder / "checkpoints").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifest |= {"config": defining(resolved), "config_sha256": fingerprint_of_config(resolved)}
        del manifest["manifest_sha256"]
        atomic_write(path, encode(manifest))
    donor = (taken / "run.txt").read_text()
    if donor != folder.name:
        with open(folder / "lineage.txt", "a") as file:
            file.write(f"round {len(RunDirectory(folder).metrics())}: state of {donor}, with {values}\n")
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def snapshot(folder: Path) -> Iterator[Path]:
    """A context manager that gives the path of a temporary copy of a run's state, for a checkpoint of Ray Tune.

    folder: the run directory.
    """
    copy = folder.with_name(f".{folder.name}.snapshot")
    shutil.rmtree(copy, ignore_errors=True)
    copy_state(folder, copy)
    atomic_write(copy / "run.txt", folder.name)
    try:
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def as_config(trial: Trial) -> dict[str, Any]:
    """The Ray Tune config of a trial, {"trial": its fields}; the values are a copy, because PBT changes them."""
    return {"trial": asdict(replace(trial, values=dict(trial.values)))}
