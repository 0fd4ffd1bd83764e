"""The trials of a sweep on Ray Tune: makes the open ones and records their ends."""

import logging
import os
import pickle
import signal
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cached_property, partial, partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from ray import tune
from ray.tune import Callback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.urls import join
from raylfl.errors import Say
from raylfl.execution.executor import in_one_process
from raylfl.execution.planned import PlannedRun
from raylfl.execution.store import plan, words_of
from raylfl.report.runs import readable
from raylfl.runtime.ray.failures import ACTOR_LOST, reason_of_loss
from raylfl.runtime.ray.resources import Resources, capacity, nodes_of_cluster
from raylfl.runtime.records.mirror import Mirror
from raylfl.runtime.stopping import handlers_kept
from raylfl.tune.journal import DIVERGED, FAILED, FINISHED, OPEN, STOPPED, End, Journal, Trial, score_text, setting_row
from raylfl.tune.resources import choose_bundles
from raylfl.tune.score import SCORE, TIME, RunningScore
from raylfl.tune.space import Values, comparable
from raylfl.tune.spec import SchedulerConfig, Sweep
from raylfl.tune.trial import SettingTrial, TrialJob

PULSE_SECONDS = 30.0  # time between lines about running trials
SCRATCH = ".tune"  # Ray Tune's own files, hidden from `raylfl report`


class SweepRun(Callback):
    """The trials of a sweep; `carry_out` makes those that have not ended, with lines for the user by Ray Tune's hooks.

    mirror: copies the sweep's files to its URL, except the run directories, which each run copies itself; None: no URL.
    """

    def __init__(
        self, sweep: Sweep, folder: Path, journal: Journal, runtime: RuntimeConfig, say: Say, mirror: Mirror | None
    ):
        self.sweep, self.folder, self.journal, self.say = sweep, folder, journal, say
        self.runtime, self.mirror = runtime, mirror
        self.searching = sweep.options.search == "optuna"
        self.runs: dict[str, list[PlannedRun]] = {}  # of each trial, by its id
        self.ended: set[str] = set()  # the trials that have ended here, by id
        self._done, self._said_at = 0, time.monotonic()  # trials ended so far; the time of the newest line

    def plan(self, setting: int, values: Values) -> Trial:
        """Plans the trial of a setting, and writes it to the journal."""
        url = None if self.mirror is None else self.mirror.url
        runs = [plan(self.sweep.config(values, seed, self.folder, url)) for seed in self.sweep.seeds]
        name = f"{setting:03d}-{words_of(runs[0].config['algorithm']['name'])}"
        trial = Trial(name, setting, self.sweep.seeds, values, [run.path.name for run in runs])
        self.journal.plan(trial)
        self.runs[trial.id] = runs
        return trial

    @property
    def trials(self) -> list[Trial]:
        return [self.journal.trials[name] for name in self.runs]

    @property
    def total(self) -> int:
        """The number of trials, including settings that a search has still to propose."""
        most = self.sweep.options.samples * len(self.sweep.cells()) if self.searching else 0
        return max(len(self.runs), most)

    @cached_property
    def bundles(self) -> list[Resources]:
        """The resources of a trial: a bundle for each process, or for its server and each of its workers."""
        concurrent = self.sweep.options.concurrent
        return choose_bundles(self.runtime, len(self.sweep.seeds), self.total, concurrent, nodes_of_cluster())

    @property
    def processes(self) -> int:
        """The number of processes among which the seeds of a trial are divided."""
        return len(self.bundles) if self.runtime.backend == "local" else 1

    def carry_out(self) -> None:
        """Runs all open trials until each has ended. Raises KeyboardInterrupt if it is interrupted."""
        left = [trial for trial in self.trials if self.end_of(trial).state in (OPEN, FAILED)]
        self._done = len(self.runs) - len(left)
        search = self._studies() if self.searching else None
        if not left and (search is None or search.complete):
            return
        # Ray Tune leaves its own handlers behind: a later Ctrl-C would have no effect
        with quiet(), handlers_kept(signal.SIGINT, signal.SIGUSR1):
            self._tuner(left, search).fit()
        if {trial.id for trial in left} - self.ended or (search is not None and not search.complete):
            raise KeyboardInterrupt

    def end_of(self, trial: Trial) -> End:
        """The end of a trial, as its runs or else the journal show it; its state is `open` while it has not ended."""
        runs = self.runs[trial.id]
        if all(run.complete for run in runs):
            return End(DIVERGED if all(run.diverged for run in runs) else FINISHED)
        return self.journal.ends.get(trial.id, End(OPEN))

    @property
    def job(self) -> TrialJob:
        rounds = self.sweep.rounds
        resources = {f"num_{key.lower()}s": amount for key, amount in self.bundles[-1].items()}
        rungs = self.sweep.scheduler.rungs(rounds)
        return TrialJob(self.sweep.score, rounds, rungs, self.processes, resources, os.getcwd())

    def config(self, trial: Trial) -> dict[str, Any]:
        """Ray Tune's config of a trial: its fields, and its runs."""
        runs = self.runs[trial.id]
        if self.runtime.backend == "local":
            runs = [in_one_process(run, self.bundles[-1].get("GPU", 0.0)) for run in runs]
        return {"setting": {**asdict(trial), "runs": runs}}

    def _studies(self) -> Any:
        from raylfl.tune.studies import Studies

        ended = [trial for trial in self.trials if self.end_of(trial).state not in (OPEN, FAILED)]
        reports = {trial.id: self.reports(trial) for trial in ended}
        scores = {name: pairs[-1][1] if pairs else self.sweep.score.worst for name, pairs in reports.items()}
        return Studies(self, scores)

    def _tuner(self, left: Sequence[Trial], search: Any) -> tune.Tuner:
        """Ray Tune's Tuner for the trials that have not ended, `left`, or for those that `search` proposes."""
        options, mode = self.sweep.options, self.sweep.score.direction
        begun = ((trial, self.reports(trial)) for trial in self.trials)
        at_once = options.concurrent
        if search is not None:  # so that Optuna learns from the first settings before it proposes the last ones
            at_once = at_once or max(capacity(self.bundles, nodes_of_cluster()), 1)
        settings = [self.config(trial)["setting"] for trial in left]
        return tune.Tuner(
            tune.with_resources(
                tune.with_parameters(SettingTrial, job=self.job), tune.PlacementGroupFactory(self.bundles)
            ),
            param_space={"setting": tune.grid_search(settings)} if search is None else None,
            tune_config=tune.TuneConfig(
                metric=SCORE,
                mode=mode,
                num_samples=self.total if search is not None else 1,  # an upper limit; `search` ends the search
                search_alg=search,
                scheduler=build_scheduler(self.sweep.scheduler, self.sweep.rounds, mode, begun),
                max_concurrent_trials=at_once,
                reuse_actors=True,
                trial_name_creator=name_of,
                trial_dirname_creator=name_of,
            ),
            run_config=tune.RunConfig(
                name=time.strftime("%Y%m%d-%H%M%S"),
                **self._scratch(),
                failure_config=tune.FailureConfig(max_failures=options.retries),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the runs have their own
                callbacks=[self],
                verbose=0,
            ),
        )

    def _scratch(self) -> dict[str, Any]:
        """Ray Tune's options that place its own files in the sweep's folder, or at the sweep's URL if it has one."""
        if self.mirror is None:
            return {"storage_path": str(self.folder / SCRATCH)}
        from fsspec.core import url_to_fs
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        fs, path = url_to_fs(join(self.mirror.url, SCRATCH))
        return {"storage_path": path, "storage_filesystem": PyFileSystem(FSSpecHandler(fs))}

    def reports(self, trial: Trial) -> list[tuple[int, float]]:
        """The reports (rounds done, mean score) that a trial has made, read from its run directories.

        A run that has ended counts with its last score. The last report of an open trial is left out: the scheduler may
        not have decided on it.
        """
        score, metric, runs = self.sweep.score, self.sweep.score.metric, self.runs[trial.id]
        columns: list[list[float | None]] = []
        for run in runs:
            running, record = RunningScore(score, self.sweep.rounds), readable(run.path)
            rows = [] if record is None else zip(record.rounds, record.column(metric), strict=True)
            columns.append([running.update({"round": int(r), metric: value}) for r, value in rows])
        longest = max(map(len, columns))
        for run, column in zip(runs, columns, strict=True):
            if run.complete:
                last = score.worst if run.diverged else (column or [None])[-1]
                column += [last] * (longest - len(column))
        means = list(zip(*columns, strict=False))  # up to the shortest, which has not ended
        if self.end_of(trial).state in (OPEN, FAILED):
            means = means[:-1]
        return [(done, float(np.mean(scores))) for done, scores in enumerate(means, 1) if None not in scores]

    def end(self, trial_id: str, last: Mapping[str, Any] | None, error: str = "") -> str:
        """Records the end of a trial, with its last report to Ray Tune; returns a line about it for the user."""
        trial, report, runs = self.journal.trials[trial_id], last or {}, self.runs[trial_id]
        for run in runs:
            run.fetch()
        end = self.end_of(trial)
        if end.state in (OPEN, FAILED):
            reason = report.get("reason", error)
            if not reason and report.get(TIME) == self.sweep.rounds:
                reason = f"it ended on another node, and {self.folder} lacks its runs: RAYLFL_RUNS must be shared"
            end = End(FAILED if reason else STOPPED, reason)
            self.journal.end(trial.id, end.state, end.reason)
        if self.mirror is not None:
            self.mirror.commit(self.say)
        row = setting_row(self.sweep, self.folder, trial, end)
        value = f"  {self.sweep.score.metric} {score_text(row.score)}" if end.state in (FINISHED, STOPPED) else ""
        rounds = f" after round {report[TIME]}" if end.state == STOPPED and report else ""
        diverged = [run.reason for run in row.runs if run.state == DIVERGED]
        lost = f"  {len(diverged)} of {len(runs)} seeds diverged" if diverged else ""
        reason = next(filter(None, [end.reason, *diverged, report.get("reason")]), "")
        return f"{trial.id}  {end.state}{rounds}{value}{lost}{'  ' + reason.splitlines()[0] if reason else ''}"

    # -- hooks of Ray Tune ---------------------------------------------------------------------------------------

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(str(trial), trial.last_result)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(str(trial), trial.last_result, cause(trial))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._say(f"{trial}  failed ({cause(trial)}): tried again from its newest checkpoints")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self._said_at < PULSE_SECONDS:
            return
        running = [trial for trial in trials if trial.status == "RUNNING"]
        if not running:
            self._say("waiting for the trials' processes to start")
            return
        done = {trial: trial.last_result.get(TIME) for trial in running[:4]}
        rounds = self.sweep.rounds
        progress = ", ".join(str(trial) if n is None else f"{trial} {n}/{rounds}" for trial, n in done.items())
        self._say(f"{len(running)} running: {progress}{', ...' if len(running) > 4 else ''}")

    def _end(self, trial_id: str, last: Mapping[str, Any] | None, error: str = "") -> None:
        self.ended.add(trial_id)
        line = self.end(trial_id, last, error)
        self._done += 1
        self._say(line)

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        self.say(f"[{self._done}/{self.total}] {text}")


def name_of(trial: Any) -> str:
    return str(trial.config["setting"]["id"])


@contextmanager
def quiet() -> Iterator[None]:
    """A context without Ray Tune's output, log files and working directories; `SweepRun` prints the progress."""
    variables = {
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_RESULT_BUFFER_LENGTH": "1",
        "TUNE_MAX_PENDING_TRIALS_PG": "16",  # otherwise a searcher's trials would start one after the other
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    }
    loggers = {logging.getLogger(name): logging.getLogger(name).level for name in ("ray.tune", "ray.train", "ray.air")}
    try:
        with warnings.catch_warnings(), patch.dict(os.environ, variables):
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
    finally:
        for logger, level in loggers.items():
            logger.setLevel(level)


Reports = Iterable[tuple[int, float]]  # (rounds done, score), in order


def build_scheduler(config: SchedulerConfig, rounds: int, mode: str, earlier: Iterable[tuple[Trial, Reports]]) -> Any:
    """The scheduler for Ray Tune; earlier: the trials that an interrupted sweep has begun, with their reports."""
    if config.name == "fifo":
        return FIFOScheduler()
    options: dict[str, Any] = {"time_attr": TIME, "metric": SCORE, "mode": mode, "max_t": rounds}
    options |= {"grace_period": config.first(rounds), "reduction_factor": config.reduction}
    return SchedulerByKind(partial(ASHAScheduler, **options), earlier)


class SchedulerByKind(FIFOScheduler):
    """Passes each trial to the scheduler of its kind: no setting is stopped because its data or system are harder.

    build: creates the scheduler of a kind. earlier: as in `build_scheduler`; their reports are repeated here, so that
    the past decisions stand and the continued trials are compared with all settings.
    """

    def __init__(self, build: Callable[[], Any], earlier: Iterable[tuple[Trial, Reports]]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.schedulers: dict[str, Any] = defaultdict(build)
        for trial, reports in earlier:
            scheduler, named = self._of({"id": trial.id, "values": trial.values})
            scheduler.on_trial_add(None, named)
            for done, score in reports:
                scheduler.on_trial_result(None, named, {TIME: done, SCORE: score})

    def _of(self, fields: Mapping[str, Any]) -> tuple[Any, Any]:
        """The scheduler of a trial with these fields, and the trial under its id in the journal."""
        return self.schedulers[comparable(fields["values"])], SimpleNamespace(trial_id=fields["id"])

    def _pass(self, hook: str, tune_controller: Any, trial: Any, *result: dict[str, Any]) -> Any:
        scheduler, named = self._of(trial.config["setting"])
        return getattr(scheduler, hook)(tune_controller, named, *result)

    on_trial_add = partialmethod(_pass, "on_trial_add")
    on_trial_result = partialmethod(_pass, "on_trial_result")
    on_trial_complete = partialmethod(_pass, "on_trial_complete")
    on_trial_remove = partialmethod(_pass, "on_trial_remove")


def cause(trial: Any) -> str:
    """The cause of a trial's failure: the last line of Ray Tune's error file, or how the trial's process was lost."""
    if trial.pickled_error_file is not None and Path(trial.pickled_error_file).exists():
        with suppress(Exception):  # a user's exception that can be pickled, but not loaded
            error = pickle.loads(Path(trial.pickled_error_file).read_bytes())
            if isinstance(error, ACTOR_LOST):
                return reason_of_loss(error)
    path = Path(trial.local_path or ".") / "error.txt"
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()] if path.exists() else []
    return lines[-1] if lines else "its process was lost"
