"""The runs of a trial's seeds in one process: ordinary runs, each of which a repeated trial resumes."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from raylfl.config.changes import refuse_changes
from raylfl.config.load import load_config
from raylfl.errors import BadConfig, NonFinite
from raylfl.experiment.assemble import assemble
from raylfl.experiment.parts import Experiment
from raylfl.report.runs import readable
from raylfl.runtime.records.run_dir import RECORDS, RunDirectory
from raylfl.runtime.round.early_stop import require_recorded
from raylfl.runtime.session import Session, write_records
from raylfl.runtime.workers.backend import Backend, LocalBackend
from raylfl.theory.rate import resolve_rate
from raylfl.tune.job import SweepJob, open_run
from raylfl.tune.journal import Trial
from raylfl.tune.score import RunningScore
from raylfl.tune.spec import make_sweep

# files and folders of a run's state
STATE = ("checkpoints", *RECORDS, "partition.json", "partition_counts.json", "directions.json")


@dataclass(frozen=True)
class SeedProgress:
    """The progress of the seeds of a trial.

    done: the number of rounds done by the run that is furthest. scores: seed -> score; None before the metric is first
    measured, and for a run that diverged. diverged: seed -> reason. refused: why the trial's config is invalid; None:
    it is valid.
    """

    done: int = 0
    scores: dict[int, float | None] = field(default_factory=dict)
    diverged: dict[int, str] = field(default_factory=dict)
    refused: str | None = None


class SeedRuns:
    """The runs of some seeds of a trial, which this process executes in turn.

    With several seeds, a run is saved and closed before the next one continues: the process holds one run at a time.
    """

    def __init__(self, job: SweepJob, trial: Trial, seeds: Sequence[int]):
        self.job, self.trial, self.seeds = job, trial, list(seeds)
        self.sweep = make_sweep(job.content)
        self.scores: dict[int, float | None] = {}
        self.diverged: dict[int, str] = {}
        self.done = 0
        self._open: dict[int, Generator[tuple[int, float | None], None, None]] = {}

    def advance(self, until: int) -> SeedProgress:
        """Executes all runs up to round `until`, or to their end.

        A run that diverges is not an error. Other errors are raised; Ray Tune then repeats the trial.
        """
        try:
            for seed in self.seeds:
                if seed not in self.diverged:
                    self._advance(seed, until)
        except BadConfig as error:  # a repetition would fail as well
            return SeedProgress(refused=str(error))
        return SeedProgress(self.done, dict(self.scores), dict(self.diverged))

    def close(self) -> None:
        """Saves and closes the open runs."""
        while self._open:
            self._open.popitem()[1].close()

    def _advance(self, seed: int, until: int) -> None:
        stream = self._open.pop(seed, None) or self._rounds(seed)
        last = until == self.trial.rounds
        try:
            for done, score in stream:
                self.done, self.scores[seed] = max(self.done, done), score
                if done >= until and not last:  # the last round writes the summary, too
                    break
        except NonFinite as error:
            self.diverged[seed], self.scores[seed] = str(error), None
        if len(self.seeds) > 1:
            stream.close()
        else:
            self._open[seed] = stream

    def _rounds(self, seed: int) -> Generator[tuple[int, float | None], None, None]:
        """Carries out the run of a seed; yields the number of rounds done and the score after each round.

        Rounds of earlier attempts are yielded first. Raises BadConfig if the run never measures the metric.
        """
        job, trial, sweep = self.job, self.trial, self.sweep
        folder, parent = job.run_folder(trial.run_id(seed)), trial.parent(seed)
        config = sweep.config(trial, seed, Path(job.folder), job.url)
        notes = resolve_rate(config)
        experiment = assemble(config)
        experiment.warnings.extend(notes)
        experiment = experiment.under(experiment.config.runtime.sharing(job.gpus))
        if parent is not None and not folder.exists():
            continue_from(job.read_folder(parent), folder, experiment.config.resolved)
        job.begin(folder)
        running, score = RunningScore(sweep.score, trial.rounds), None
        with open_run(folder, job.command) as run_dir:
            try:
                with closing(rows(experiment, run_dir, job.workers, trial.rounds)) as stream:
                    for metrics, fresh in stream:
                        score = running.update(metrics)
                        if score is None and fresh:  # rows of a file lack non-finite values
                            require_recorded("metric", sweep.score.metric, metrics)
                        yield metrics["round"] + 1, score
                if score is None:
                    raise BadConfig(f"metric={sweep.score.metric} was never measured in {folder.name}")
            except Exception as error:
                run_dir.log(f"{type(error).__name__}: {error}")
                raise


Rows = Generator[tuple[dict[str, Any], bool], None, None]


def rows(experiment: Experiment, run_dir: RunDirectory, workers: int, rounds: int) -> Rows:
    """Executes a run and yields (metrics, whether they are new) of each round, including rounds of earlier attempts.

    workers: the number of workers. rounds: the length of the run; a complete run is only read. If the generator is
    closed early, a checkpoint is saved.
    """
    earlier_rows = run_dir.metrics()
    earlier = readable(run_dir.path)
    if earlier is not None and earlier.complete(rounds):
        yield from ((metrics, False) for metrics in earlier_rows)
        run_dir.copy_to_url(run_dir.log)
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
                    yield metrics, metrics not in earlier_rows[metrics["round"] : metrics["round"] + 1]
                except GeneratorExit:  # another seed's turn, or stopped by the scheduler
                    session.save()
                    raise
    finally:
        backend.close()


def make_backend(experiment: Experiment, run_dir: RunDirectory, workers: int) -> Backend:
    """The backend of a run: a worker in this process, or `workers` Ray actors in the trial's placement group."""
    if experiment.config.runtime.backend == "local":
        return LocalBackend(experiment.setup)
    from raylfl.runtime.ray.actors import start_workers
    from raylfl.runtime.ray.backend import RayBackend
    from raylfl.runtime.ray.stored import StoredExperiment

    assert experiment.setup.nodes is None  # refused before the first trial
    actors = start_workers(experiment.config.runtime, [None] * workers)
    return RayBackend(experiment, StoredExperiment.put(experiment, workers), actors, run_dir.log)


def continue_from(parent: Path, folder: Path, resolved: dict[str, Any]) -> None:
    """Copies the state of a shorter run of the same setting to `folder`; does nothing if it cannot be continued.

    The copy is atomic: `folder` exists only once the copy is complete. parent: the run directory of the shorter run.
    resolved: the config of the longer run.
    """
    try:
        refuse_changes(load_config(parent / "config.yaml").resolved, resolved)
    except BadConfig:  # its values have phases, which end at fractions of all rounds
        return
    aside = folder.with_name(f".{folder.name}.incoming")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name in STATE:
        if (parent / name).is_dir():
            shutil.copytree(parent / name, aside / name)
        elif (parent / name).exists():
            shutil.copy2(parent / name, aside / name)
    aside.rename(folder)
