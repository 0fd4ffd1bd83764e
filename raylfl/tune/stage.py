"""One stage of a sweep on Ray Tune: runs its open trials and records their ends."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback

from raylfl.config.urls import join
from raylfl.errors import Say
from raylfl.execution.resources import Need, capacity
from raylfl.report.runs import readable
from raylfl.runtime.ray.resources import nodes_of_cluster
from raylfl.runtime.records.mirror import Mirror, refresh
from raylfl.runtime.stopping import handlers_kept
from raylfl.tune.job import SweepJob
from raylfl.tune.journal import FAILED, FINISHED, STOPPED, Journal, Trial
from raylfl.tune.score import SCORE, TIME, RunningScore
from raylfl.tune.spec import Sweep
from raylfl.tune.table import score_text, setting_row
from raylfl.tune.trial import called_by_tune, waiting_trainable
from raylfl.tune.trial_log import TrialLog

SCRATCH = ".tune"  # Ray Tune's own files, hidden from `raylfl report`


class StageRun:
    """One stage of a sweep; `carry_out` runs its trials that have not ended."""

    def __init__(
        self,
        sweep: Sweep,
        index: int,
        folder: Path,
        journal: Journal,
        need: Need,
        say: Say,
        mirror: Mirror | None = None,
    ):
        """Prepares stage number `index` of a sweep.

        folder: the sweep's folder. need: the resources of one trial. say: called with one line for the user. mirror:
        copies the sweep's files to its URL, except the run directories, which each run copies itself; None: the sweep
        has no URL.
        """
        self.sweep, self.index, self.folder, self.journal, self.say = sweep, index, folder, journal, say
        self.need, self.mirror = need, mirror
        url = None if mirror is None else mirror.url
        command, cwd = shlex.join(sys.argv), os.getcwd()
        self.job = SweepJob(sweep.content, str(folder), need.workers, need.processes, command, url, cwd, need.gpus)
        self.rounds = sweep.stages[index].rounds
        self.searching = sweep.options.search == "optuna" and index == 0
        self.total = trials_of(sweep, index, journal)

    def carry_out(self) -> None:
        """Runs all open trials until each has ended. Raises KeyboardInterrupt if it is interrupted."""
        trials = self.journal.of_stage(self.index)
        for trial in trials:
            self._fetch(trial)
        left = [trial for trial in trials if not self._is_over(trial)]
        done = len(trials) - len(left)
        if done == self.total:
            return
        log = TrialLog(self.journal, self.end, self.say, self.rounds, self.total, done)
        search = self._studies() if self.searching else None
        # Ray Tune leaves its own handlers behind: a later Ctrl-C would have no effect
        with quiet(), handlers_kept(signal.SIGINT, signal.SIGUSR1):
            self._tuner(left, log, search).fit()
        if {trial.id for trial in left} - log.ended or (search is not None and not search.complete):
            raise KeyboardInterrupt

    def _studies(self) -> Any:
        """The searcher of search=optuna."""
        from raylfl.tune.studies import Studies

        ended = [trial for trial in self.journal.of_stage(0) if self.journal.is_over(trial)]
        reports = {trial.id: self.reports(trial) for trial in ended}
        scores = {name: pairs[-1][1] if pairs else self.sweep.score.worst for name, pairs in reports.items()}
        return Studies(self.sweep, self.journal, scores, self.say)

    def _tuner(self, left: Sequence[Trial], log: Callback, search: Any) -> tune.Tuner:
        """Ray Tune's Tuner for the trials that have not ended, `left`, or for those that `search` proposes."""
        options, mode = self.sweep.options, self.sweep.score.direction
        begun = [(trial, self.reports(trial)) for trial in self.journal.of_stage(self.index)]
        at_once = options.concurrent
        if search is not None:  # so that Optuna learns from the first settings before it proposes the last ones
            at_once = at_once or max(capacity(self.need.bundles, nodes_of_cluster()), 1)
        resources = tune.PlacementGroupFactory(self.need.bundles)
        return tune.Tuner(
            tune.with_resources(waiting_trainable(tune.with_parameters(called_by_tune, job=self.job)), resources),
            param_space=None if search is not None else {"trial": tune.grid_search([asdict(trial) for trial in left])},
            tune_config=tune.TuneConfig(
                metric=SCORE,
                mode=mode,
                num_samples=self.total if search is not None else 1,  # an upper limit; `search` ends the search
                search_alg=search,
                scheduler=self.sweep.scheduler.build(self.rounds, mode, begun),
                max_concurrent_trials=at_once,
                reuse_actors=True,
                trial_name_creator=lambda trial: str(trial.config["trial"]["id"]),
                trial_dirname_creator=lambda trial: str(trial.config["trial"]["id"]),
            ),
            run_config=tune.RunConfig(
                name=f"stage{self.index}-{time.strftime('%Y%m%d-%H%M%S')}",
                **self._scratch(),
                failure_config=tune.FailureConfig(max_failures=options.retries),
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

    def _fetch(self, trial: Trial) -> None:
        """Fetches the records of a trial, which another node may have run, from the sweep's URL if it has one."""
        if self.mirror is not None:
            for seed in trial.seeds:
                run = trial.run_id(seed)
                refresh(self.folder / run, join(self.mirror.url, run))

    def _incomplete(self, trial: Trial, diverged: Collection[int]) -> list[str]:
        """The ids of a trial's runs that are not complete, without the runs of diverged seeds."""
        names = [trial.run_id(seed) for seed in trial.seeds if seed not in diverged]
        runs = {name: readable(self.folder / name) for name in names}
        return [name for name, run in runs.items() if run is None or not run.complete(trial.rounds)]

    def _is_over(self, trial: Trial) -> bool:
        """Whether a trial needs no further run.

        If the end of a complete trial is missing in the journal, it is added. The damaged runs of a finished trial are
        reported to the user and carried out again.
        """
        end = self.journal.ends.get(trial.id)
        incomplete = self._incomplete(trial, end.diverged if end is not None else ())
        if not incomplete and end is None:
            self.journal.end(trial.id, FINISHED)
        if self.journal.state(trial) == FINISHED and incomplete:
            for run in incomplete:
                self.say(f"{run}  had finished, but its directory is damaged: run again from what can be read")
            return False
        return self.journal.is_over(trial)

    def reports(self, trial: Trial) -> list[tuple[int, float]]:
        """The reports (rounds done, mean score) that a trial has made, read from its run directories.

        A run that has ended counts with its last score. A run that has not, and lacks a row of a round that another one
        has passed, diverged.
        """
        scores: list[dict[int, float | None]] = []
        most = 0 if trial.id in self.journal.ends else -1  # after its last round, an open trial may yet be stopped
        runs = [readable(self.folder / trial.run_id(seed)) for seed in trial.seeds]
        most += max((int(run.rounds[-1]) + 1 for run in runs if run is not None and len(run.rounds)), default=0)
        for run in runs:
            running = RunningScore(self.sweep.score, trial.rounds)
            rows = [] if run is None else zip(run.rounds, run.column(self.sweep.score.metric), strict=True)
            seen = {int(r) + 1: running.update({"round": int(r), self.sweep.score.metric: v}) for r, v in rows}
            later_rounds = range(1, most + 1) if run is not None and run.finished else ()
            scores.append({**dict.fromkeys(later_rounds, running.value), **seen})
        reports = []
        for done in range(1, most + 1):
            if all(run_scores[done] is not None for run_scores in scores if done in run_scores):
                reports.append((done, self.sweep.score.mean(run_scores.get(done) for run_scores in scores)))
        return reports

    # -- ends of trials ------------------------------------------------------------------------------------

    def end(self, trial: Trial, last: Mapping[str, Any] | None, error: str = "") -> str:
        """Writes the end of a trial to the journal; returns a line about it for the user.

        last: the trial's last report to Ray Tune, if any. error: the reason if the trial failed, else "".
        """
        report = last or {}
        diverged = report.get("diverged", [])
        self._fetch(trial)
        state, reason = report.get("state", STOPPED), report.get("reason", "")
        if "state" not in report and not self._incomplete(trial, diverged):
            state = FINISHED
        elif "state" not in report and error:
            state, reason = FAILED, error
        self.journal.end(trial.id, state, reason, diverged)
        if self.mirror is not None:
            self.mirror.commit(self.say)
        score = setting_row(self.sweep, self.folder, trial, self.journal.ends[trial.id]).score
        value = f"  {self.sweep.score.metric} {score_text(score)}" if state in (FINISHED, STOPPED) else ""
        rounds = f" after round {report[TIME]}" if state == STOPPED and report else ""
        lost = f"  {len(diverged)} of {len(trial.seeds)} seeds diverged" if diverged else ""
        return f"{trial.id}  {state}{rounds}{value}{lost}{'  ' + reason.splitlines()[0] if reason else ''}"


def trials_of(sweep: Sweep, index: int, journal: Journal) -> int:
    """The number of trials of a stage, including settings that a search has still to propose."""
    planned = len(journal.of_stage(index))
    searching = sweep.options.search == "optuna" and index == 0
    return max(planned, sweep.options.samples * len(sweep.cells())) if searching else planned


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
    earlier = {key: os.environ.get(key) for key in variables}
    loggers = {name: logging.getLogger(name).level for name in ("ray.tune", "ray.train", "ray.air")}
    os.environ.update(variables)
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for key, value in earlier.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
        for name, level in loggers.items():
            logging.getLogger(name).setLevel(level)
