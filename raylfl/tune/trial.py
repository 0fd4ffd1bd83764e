"""A trial of Ray Tune: the runs of a setting's seeds, with reports of their mean score.

Ray Tune starts this process in the trial's placement group. The seeds are divided among `TrialJob.processes` processes:
this one, and an actor for each further one, in the same group. Where each seed has a process of its own, the trial
reports after every round. Otherwise the seeds of a process take turns, and the trial reports where the scheduler may
stop it and at its end.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray import tune

from raylfl.errors import BadConfig
from raylfl.execution.planned import PlannedRun
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.startup import process
from raylfl.tune.journal import FAILED
from raylfl.tune.score import SCORE, TIME, RunningScore, Score

LOCK_SECONDS = 300  # longest wait, in seconds, for the process of an earlier attempt


@dataclass(frozen=True)
class TrialJob:
    """The data that all trials of a sweep share.

    rungs: the rounds before the last one after which the scheduler may stop a trial. processes: among which the seeds
    of a trial are divided. resources: the options of Ray for a further process. cwd: the working directory of the
    sweep.
    """

    score: Score
    rounds: int
    rungs: list[int]
    processes: int = 1
    resources: dict[str, float] = field(default_factory=dict)
    cwd: str = ""


Scores = dict[int, float | None]  # seed -> score; None before the metric is first measured


class SeedRuns:
    """The runs of some seeds in one process, for one trial after the other; of several seeds, one run is open."""

    def __init__(self, job: TrialJob):
        process.set_up()
        process.work_in(job.cwd)
        from raylfl.core.threads import limit_threads

        limit_threads(1)
        self.job = job
        self._open: dict[int, Generator[tuple[int, float | None], None, None]] = {}

    def begin(self, runs: Mapping[int, PlannedRun]) -> None:
        """Prepares for a trial; runs: seed -> run."""
        self.runs = {seed: run.on_this_node() for seed, run in runs.items()}
        self.done, self.scores = 0, Scores()

    def advance(self, until: int) -> tuple[int, Scores]:
        """Continues all runs up to round `until`, or to their end. A run that diverges is not an error.

        Returns the rounds done by the run that is furthest, and the scores.
        """
        for seed, run in self.runs.items():
            if self.scores.get(seed) == self.job.score.worst:
                continue
            stream = self._open.pop(seed, None) or self._rounds(run)
            for done, score in stream:
                self.done, self.scores[seed] = max(self.done, done), score
                if until <= done < self.job.rounds:
                    break
            if run.diverged:
                self.scores[seed] = self.job.score.worst
            elif len(self.runs) > 1:
                stream.close()
            else:
                self._open[seed] = stream
        return self.done, self.scores

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _rounds(self, run: PlannedRun) -> Generator[tuple[int, float | None], None, None]:
        """Makes a run; yields the number of rounds done and the score after each round, also of rounds made before."""
        deadline = time.monotonic() + LOCK_SECONDS
        while RunDirectory(run.path).in_use and time.monotonic() < deadline:  # by a process that Ray ends
            time.sleep(0.2)
        running = RunningScore(self.job.score, self.job.rounds)
        for metrics in run.rounds():
            yield metrics["round"] + 1, running.update(metrics)
        if running.value is None and not run.diverged:
            raise BadConfig(f"metric={self.job.score.metric} was never measured in {run.path.name}")


class SettingTrial(tune.Trainable):
    """Ray Tune's trainable class; the config has the fields of a `Trial`, with `PlannedRun`s as its runs."""

    def setup(self, config: dict[str, Any], job: TrialJob) -> None:  # type: ignore[override]
        self.job, remote = job, ray.remote(SeedRuns).options(**job.resources)
        others = min(job.processes, len(config["setting"]["runs"])) - 1  # in this process's placement group
        self.actors: list[Any] = [remote.remote(job) for _ in range(others)]
        self.seeds = SeedRuns(job)
        self._begin(config)

    def _begin(self, config: dict[str, Any]) -> None:
        runs = list(zip(config["setting"]["seeds"], config["setting"]["runs"], strict=True))
        count = 1 + len(self.actors)
        first, *others = (dict(runs[k::count]) for k in range(count))
        begun = [actor.begin.remote(part) for actor, part in zip(self.actors, others, strict=True)]
        self.seeds.begin(first)
        wait_for(begun)
        # a report after each round if each seed has a process
        self._stops = iter([*(range(1, self.job.rounds) if count == len(runs) else self.job.rungs), self.job.rounds])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Prepares the process, which Ray Tune uses again, for another setting."""
        self._close()
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Runs the rounds up to the next report. BadConfig is reported, because a repetition would fail as well."""
        try:
            for until in self._stops:
                pending = [actor.advance.remote(until) for actor in self.actors]
                row = report(self.job, until, [self.seeds.advance(until), *wait_for(pending)])
                if row is not None:
                    return row
            raise AssertionError
        except BadConfig as error:
            reason = str(getattr(error, "cause", error))
            return {SCORE: self.job.score.worst, TIME: self.job.rounds, "state": FAILED, "reason": reason, "done": True}

    def cleanup(self) -> None:
        self._close()
        for actor in self.actors:
            ray.kill(actor)

    def _close(self) -> None:
        closing = [actor.close.remote() for actor in self.actors]
        self.seeds.close()
        with suppress(ray.exceptions.RayError):  # a lost actor has nothing to save
            wait_for(closing)


def wait_for(references: Sequence[Any]) -> list[Any]:
    """The results of calls of further processes; without such calls, Ray is not needed."""
    return list(ray.get(list(references))) if references else []


def report(job: TrialJob, until: int, parts: Sequence[tuple[int, Scores]]) -> dict[str, Any] | None:
    """The report on all seeds up to round `until`; None while a seed has no score.

    parts: the results of `SeedRuns.advance`. The last report, with `done`, is made after all runs are complete, which
    may be earlier by the rule `stop` of the runs.
    """
    done, scores = max(done for done, _ in parts), [score for _, part in parts for score in part.values()]
    if None in scores:
        return None
    ended = set(scores) == {job.score.worst} or done < until or until == job.rounds
    return {SCORE: float(np.array(scores, dtype=np.float64).mean()), TIME: job.rounds if ended else done, "done": ended}
