"""The trials of a sweep on Ray Tune: makes the open ones and records their ends."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ray import tune

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.urls import join
from raylfl.errors import Say
from raylfl.execution.executor import in_one_process
from raylfl.execution.planned import PlannedRun
from raylfl.execution.store import plan, words_of
from raylfl.report.runs import readable
from raylfl.runtime.ray.resources import capacity, nodes_of_cluster
from raylfl.runtime.records.mirror import Mirror
from raylfl.runtime.stopping import handlers_kept
from raylfl.tune.journal import DIVERGED, FAILED, FINISHED, OPEN, STOPPED, End, Journal, Trial
from raylfl.tune.resources import Need, choose_need
from raylfl.tune.score import SCORE, TIME, RunningScore
from raylfl.tune.space import Values
from raylfl.tune.spec import Sweep
from raylfl.tune.table import score_text, setting_row
from raylfl.tune.trial import SettingTrial, TrialJob
from raylfl.tune.trial_log import TrialLog

SCRATCH = ".tune"  # Ray Tune's own files, hidden from `raylfl report`


class SweepRun:
    """The trials of a sweep; `carry_out` makes those that have not ended.

    folder: the sweep's folder. runtime: of the sweep's runs. say: called with one line for the user. mirror: copies the
    sweep's files to its URL, except the run directories, which each run copies itself; None: the sweep has no URL.
    """

    def __init__(
        self, sweep: Sweep, folder: Path, journal: Journal, runtime: RuntimeConfig, say: Say, mirror: Mirror | None
    ):
        self.sweep, self.folder, self.journal, self.say = sweep, folder, journal, say
        self.runtime, self.mirror = runtime, mirror
        self.searching = sweep.options.search == "optuna"
        self.runs: dict[str, list[PlannedRun]] = {}  # of each trial, by its id

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
    def need(self) -> Need:
        """The resources of one trial."""
        concurrent = self.sweep.options.concurrent
        return choose_need(self.runtime, len(self.sweep.seeds), self.total, concurrent, nodes_of_cluster())

    def carry_out(self) -> None:
        """Runs all open trials until each has ended. Raises KeyboardInterrupt if it is interrupted."""
        left = [trial for trial in self.trials if self.end_of(trial).state in (OPEN, FAILED)]
        done = len(self.runs) - len(left)
        search = self._studies() if self.searching else None
        if not left and (search is None or search.complete):
            return
        log = TrialLog(self.end, self.say, self.sweep.rounds, self.total, done)
        # Ray Tune leaves its own handlers behind: a later Ctrl-C would have no effect
        with quiet(), handlers_kept(signal.SIGINT, signal.SIGUSR1):
            self._tuner(left, log, search).fit()
        if {trial.id for trial in left} - log.ended or (search is not None and not search.complete):
            raise KeyboardInterrupt

    def end_of(self, trial: Trial) -> End:
        """The end of a trial, as its runs or else the journal show it; its state is `open` while it has not ended."""
        runs = self.runs[trial.id]
        if all(run.complete for run in runs):
            return End(DIVERGED if all(run.diverged for run in runs) else FINISHED)
        return self.journal.ends.get(trial.id, End(OPEN))

    @property
    def ends(self) -> dict[str, End]:
        """The end of each trial, by its id."""
        return {trial.id: self.end_of(trial) for trial in self.trials}

    @property
    def job(self) -> TrialJob:
        """The data that all trials share."""
        need, rounds = self.need, self.sweep.rounds
        resources = {f"num_{key.lower()}s": amount for key, amount in need.bundles[-1].items()}
        rungs = self.sweep.scheduler.rungs(rounds)
        return TrialJob(self.sweep.score, rounds, rungs, need.processes, resources, os.getcwd())

    def config(self, trial: Trial) -> dict[str, Any]:
        """Ray Tune's config of a trial: its fields, and its runs."""
        runs = self.runs[trial.id]
        if self.runtime.backend == "local":
            runs = [in_one_process(run, self.need.gpus) for run in runs]
        return {"setting": {**asdict(trial), "runs": runs}}

    def _studies(self) -> Any:
        """The searcher of search=optuna."""
        from raylfl.tune.studies import Studies

        ended = [trial for trial in self.trials if self.end_of(trial).state not in (OPEN, FAILED)]
        reports = {trial.id: self.reports(trial) for trial in ended}
        scores = {name: pairs[-1][1] if pairs else self.sweep.score.worst for name, pairs in reports.items()}

        def propose(setting: int, values: Values) -> dict[str, Any]:
            return self.config(self.plan(setting, values))

        return Studies(self.sweep, self.trials, scores, propose, self.config, self.say)

    def _tuner(self, left: Sequence[Trial], log: TrialLog, search: Any) -> tune.Tuner:
        """Ray Tune's Tuner for the trials that have not ended, `left`, or for those that `search` proposes."""
        options, mode = self.sweep.options, self.sweep.score.direction
        scheduler, need = self.sweep.scheduler, self.need
        begun = ((trial, self.reports(trial)) for trial in self.trials)
        at_once = options.concurrent
        if search is not None:  # so that Optuna learns from the first settings before it proposes the last ones
            at_once = at_once or max(capacity(need.bundles, nodes_of_cluster()), 1)
        return tune.Tuner(
            tune.with_resources(
                tune.with_parameters(SettingTrial, job=self.job), tune.PlacementGroupFactory(need.bundles)
            ),
            param_space=None
            if search is not None
            else {"setting": tune.grid_search([self.config(trial)["setting"] for trial in left])},
            tune_config=tune.TuneConfig(
                metric=SCORE,
                mode=mode,
                num_samples=self.total if search is not None else 1,  # an upper limit; `search` ends the search
                search_alg=search,
                scheduler=scheduler.build(self.sweep.rounds, mode, begun),
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
                callbacks=[log],
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
        score, metric = self.sweep.score, self.sweep.score.metric
        scores: list[list[float | None]] = []
        for run in self.runs[trial.id]:
            running, record = RunningScore(score, self.sweep.rounds), readable(run.path)
            rows = [] if record is None else zip(record.rounds, record.column(metric), strict=True)
            scores.append([running.update({"round": int(r), metric: value}) for r, value in rows])
        runs = list(zip(self.runs[trial.id], scores, strict=True))
        rounds = [len(column) for run, column in runs if not run.complete] or [max(map(len, scores))]
        most = min(rounds) - (self.end_of(trial).state in (OPEN, FAILED))
        for run, column in runs:
            if run.complete:
                last = score.worst if run.diverged else (column or [None])[-1]
                column += [last] * (most - len(column))
        means = enumerate(zip(*(column[: max(most, 0)] for column in scores), strict=True), 1)
        return [(done, score.mean(column)) for done, column in means if None not in column]

    def end(self, trial_id: str, last: Mapping[str, Any] | None, error: str = "") -> str:
        """Records the end of a trial; returns a line about it for the user.

        last: the trial's last report to Ray Tune, if any. error: the reason if the trial failed, else "".
        """
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


def name_of(trial: Any) -> str:
    """The id of a trial of Ray Tune in the journal."""
    return str(trial.config["setting"]["id"])


@contextmanager
def quiet() -> Iterator[None]:
    """A context manager that switches off Ray Tune's output, log files and working directories.

    `TrialLog` prints the progress instead.
    """
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
