"""One stage of a sweep on Ray Tune: runs its open trials and records their ends."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback

from raylfl.config.urls import join
from raylfl.errors import Say
from raylfl.report.runs import is_run, readable
from raylfl.runtime.ray.resources import nodes_of_cluster
from raylfl.runtime.records.lines import read_rows
from raylfl.runtime.records.mirror import Mirror, refresh
from raylfl.runtime.stopping import handlers_kept
from raylfl.tune.journal import FAILED, FINISHED, STOPPED, Journal, Trial
from raylfl.tune.resources import Bundle, capacity
from raylfl.tune.schedulers import Asha
from raylfl.tune.score import TIME, RunningScore
from raylfl.tune.searchers import OptunaSearcher, PlannedSearcher
from raylfl.tune.slots import TrialSlots
from raylfl.tune.spec import Sweep
from raylfl.tune.trial import Job, as_config, called_by_tune, waiting_trainable
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
        trial: Sequence[Bundle],
        say: Say,
        mirror: Mirror | None = None,
    ):
        """Prepares stage number `index` of a sweep.

        folder: the sweep's folder. trial: the resource bundles of one trial, for the server and each worker. say:
        called with one line for the user. mirror: copies the sweep's files to its URL, except the run directories,
        which each trial copies itself; None: the sweep has no URL.
        """
        self.sweep, self.index, self.folder, self.journal, self.say = sweep, index, folder, journal, say
        self.bundles, self.mirror = list(trial), mirror
        url = None if mirror is None else mirror.url
        self.job = Job(sweep.content, str(folder), max(len(trial) - 1, 1), shlex.join(sys.argv), url, os.getcwd())
        self.rounds = sweep.stages[index].rounds
        self.searching = sweep.options.search == "optuna" and index == 0
        self.total = len(journal.of_stage(index))
        if self.searching:
            self.total = sweep.options.samples * len(sweep.seeds(0))

    def carry_out(self) -> None:
        """Runs all open trials until each has ended or failed. Raises KeyboardInterrupt if it is interrupted."""
        trials = self.journal.of_stage(self.index)
        for trial in trials:
            self._fetch(trial)
        left = [trial for trial in trials if not self._is_over(trial)]
        if not left and not self.searching:
            return
        log = TrialLog(self.journal, self.end, self.say, self.rounds, self.total, len(trials) - len(left))
        searcher = self._searcher(left)
        # Ray Tune leaves its own handlers behind: a later Ctrl-C would have no effect
        with quiet(), handlers_kept(signal.SIGINT, signal.SIGUSR1):
            self._tuner(left, log, searcher).fit()
        if {trial.id for trial in left} - log.ended or (searcher is not None and not searcher.complete):
            raise KeyboardInterrupt

    def _searcher(self, left: Sequence[Trial]) -> PlannedSearcher | None:
        """The searcher that gives the trials to Ray Tune, for Optuna and ASHA; None: Ray Tune gets a list of trials.

        left: the trials that have not ended.
        """
        concurrent = self.sweep.options.concurrent
        if self.searching:  # so that Optuna learns from the first settings before it proposes the last ones
            concurrent = concurrent or max(capacity(self.bundles, nodes_of_cluster()), 1)
            return OptunaSearcher(self.sweep, self.journal, self.folder, left, TrialSlots(concurrent))
        return PlannedSearcher(left, TrialSlots(concurrent)) if isinstance(self.sweep.scheduler, Asha) else None

    def _tuner(self, left: Sequence[Trial], log: Callback, searcher: PlannedSearcher | None) -> tune.Tuner:
        sweep, slots = self.sweep, searcher.slots if searcher is not None else TrialSlots()
        trials = [as_config(trial)["trial"] for trial in left]
        seeds = len(sweep.seeds(self.index))
        scheduler = sweep.scheduler.build(sweep.space, self.rounds, sweep.draws_from, seeds, slots)
        if isinstance(sweep.scheduler, Asha):
            scheduler.replay(self._earlier())
        resources = tune.PlacementGroupFactory(self.bundles)
        return tune.Tuner(
            tune.with_resources(waiting_trainable(tune.with_parameters(called_by_tune, job=self.job)), resources),
            param_space=None if searcher is not None else {"trial": tune.grid_search(trials)},
            tune_config=tune.TuneConfig(
                num_samples=self.total if searcher is not None else 1,  # an upper limit; `searcher` ends the search
                search_alg=searcher,
                scheduler=scheduler,
                max_concurrent_trials=sweep.options.concurrent if searcher is None else None,
                reuse_actors=True,
                trial_name_creator=lambda trial: str(trial.config["trial"]["id"]),
                trial_dirname_creator=lambda trial: str(trial.config["trial"]["id"]),
            ),
            run_config=tune.RunConfig(
                name=f"stage{self.index}-{time.strftime('%Y%m%d-%H%M%S')}",
                **self._scratch(),
                failure_config=tune.FailureConfig(max_failures=sweep.options.retries),
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
            refresh(self.folder / trial.id, join(self.mirror.url, trial.id))

    def _is_over(self, trial: Trial) -> bool:
        """Whether a trial needs no further run.

        If the end of a complete run is missing in the journal, it is added. A finished trial with a damaged directory
        is reported to the user and is run again.
        """
        run = readable(self.folder / trial.id)
        complete = run is not None and run.complete(trial.rounds)
        if complete and trial.id not in self.journal.ends:
            self.journal.end(trial.id, FINISHED)
        if self.journal.state(trial) == FINISHED and not complete:
            self.say(f"{trial.id}  had finished, but its directory is damaged: run again from what can be read")
            return False
        return self.journal.is_over(trial)

    def _earlier(self) -> Iterator[tuple[dict[str, Any], list[tuple[int, float]], str]]:
        """Yields (fields, scores, state) of each trial that has run, as arguments of `SettingAsha.replay`.

        scores: pairs (rounds done, score). state: the final state, or "" if the trial has not ended.
        """
        for trial in self.journal.of_stage(self.index):
            if is_run(self.folder / trial.id):
                running = RunningScore(self.sweep.score, trial.rounds)
                rows = read_rows(self.folder / trial.id / "metrics.jsonl").rows
                seen = [(row["round"] + 1, running.update(row)) for row in rows if "round" in row]
                scores = [(done, score) for done, score in seen if score is not None]
                yield as_config(trial)["trial"], scores, self.journal.state(trial)

    # -- ends of trials ------------------------------------------------------------------------------------

    def end(self, trial: Trial, last: Mapping[str, Any] | None, error: str = "") -> str:
        """Writes the end of a trial to the journal; returns a line about it for the user.

        last: the trial's last report to Ray Tune, if any. error: the reason if the trial failed, else "".
        """
        said = last or {}
        self._fetch(trial)
        run = readable(self.folder / trial.id)
        if "state" not in said and run is not None and run.complete(trial.rounds):
            state, reason = FINISHED, ""
        elif error:
            state, reason = FAILED, error
        else:
            state, reason = said.get("state", STOPPED), said.get("reason", "")
        self.journal.end(trial.id, state, reason)
        if self.mirror is not None:
            self.mirror.commit(self.say)
        score = self.sweep.score.of(run) if run is not None and state in (FINISHED, STOPPED) else None
        value = f"  {self.sweep.score.metric} {score:.4g}" if score is not None else ""
        rounds = f" after round {last[TIME]}" if state == STOPPED and last else ""
        return f"{trial.id}  {state}{rounds}{value}{'  ' + reason.splitlines()[0] if reason else ''}"


@contextmanager
def quiet() -> Iterator[None]:
    """A context manager that switches off Ray Tune's output, log files and working directories.

    `TrialLog` prints the progress instead.
    """
    ours = {
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_RESULT_BUFFER_LENGTH": "1",
        "TUNE_MAX_PENDING_TRIALS_PG": "16",  # otherwise a searcher's trials would start one after the other
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    }
    before = {key: os.environ.get(key) for key in ours}
    loggers = {name: logging.getLogger(name).level for name in ("ray.tune", "ray.train", "ray.air")}
    os.environ.update(ours)
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
        for name, level in loggers.items():
            logging.getLogger(name).setLevel(level)
