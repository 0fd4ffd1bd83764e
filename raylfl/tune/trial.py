"""A trial: the runs of a setting's seeds, with a report of their mean score to Ray Tune.

Ray Tune starts this process in the trial's placement group. The seeds are divided among `SweepJob.processes` processes:
this one, and an actor for each further one, in the same group. Each process is the server of its runs; workers are in
the group, too. Where each seed has a process of its own, the trial reports after every round. Otherwise the seeds of a
process take turns, and the trial reports where the scheduler may stop it and at its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raylfl.startup import process
from raylfl.tune.job import LOCK_SECONDS, SweepJob
from raylfl.tune.journal import DIVERGED, FAILED, Trial
from raylfl.tune.score import SCORE, TIME, Score
from raylfl.tune.seed_runs import SeedProgress, SeedRuns
from raylfl.tune.spec import make_sweep

Report = Callable[[dict[str, Any]], None]


def called_by_tune(config: dict[str, Any], job: SweepJob) -> None:
    """The function that Ray Tune calls: runs the trial in config["trial"]."""
    set_up(job)
    from ray import tune

    # a stopped trial must save its state before another trial takes its process; Ray Tune waits for two seconds only
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(LOCK_SECONDS)
    run_trial(job, Trial(**config["trial"]), tune.report)


def set_up(job: SweepJob) -> None:
    """Prepares a process that Ray has started for the runs of a trial."""
    process.set_up()
    process.work_in(job.cwd)
    from raylfl.core.threads import limit_threads

    limit_threads(1)


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


def run_trial(job: SweepJob, trial: Trial, report: Report) -> None:
    """Runs the remaining rounds of a trial's runs, and calls `report` with their mean score.

    The last report is made after all runs are complete. It has the key `state` if all runs diverged or the config is
    invalid: no error is raised, because a repetition would fail as well. Other errors are raised, and Ray Tune repeats
    the trial.
    """
    sweep = make_sweep(job.content)
    stops = [*sweep.scheduler.rungs(trial.rounds), trial.rounds]
    if job.processes >= len(trial.seeds):
        stops = list(range(1, trial.rounds + 1))
    with processes(job, trial) as advance:
        for until in stops:
            parts = advance(until)
            done = max(part.done for part in parts)
            row, ended = summary(sweep.score, parts)
            if ended or until == trial.rounds or done < until:  # complete, perhaps by the rule `stop` of the runs
                report({**row, TIME: trial.rounds})
                return
            if row:
                report({**row, TIME: done})


def summary(score: Score, parts: Sequence[SeedProgress]) -> tuple[dict[str, Any], bool]:
    """The report on the progress of all seeds, without the round, and whether the trial ends with it.

    The report is empty while a seed has no score. parts: the progress of each process.
    """
    refused = next((part.refused for part in parts if part.refused is not None), None)
    if refused is not None:
        return {SCORE: score.worst, "state": FAILED, "reason": refused}, True
    scores = {seed: score for part in parts for seed, score in part.scores.items()}
    diverged = {seed: reason for part in parts for seed, reason in part.diverged.items()}
    if any(score is None and seed not in diverged for seed, score in scores.items()):
        return {}, False
    row: dict[str, Any] = {SCORE: score.mean(scores.values()), "diverged": list(diverged)}
    if diverged:
        row["reason"] = next(iter(diverged.values()))
    if len(diverged) < len(scores):
        return row, False
    return {**row, "state": DIVERGED}, True


@contextmanager
def processes(job: SweepJob, trial: Trial) -> Generator[Callable[[int], list[SeedProgress]], None, None]:
    """A context manager that gives a function which runs all seeds of a trial up to a round, in parallel.

    Its argument is that of `SeedRuns.advance`; it returns the progress of each process.
    """
    count = min(job.processes, len(trial.seeds))
    first, *others = (trial.seeds[k::count] for k in range(count))
    runs = SeedRuns(job, trial, first)
    actors = [start(job, trial, seeds) for seeds in others]

    def advance(until: int) -> list[SeedProgress]:
        pending = [actor.advance.remote(until) for actor in actors]
        parts = [runs.advance(until)]
        if pending:
            import ray

            parts += ray.get(pending)
        return parts

    try:
        yield advance
    finally:
        closing = [actor.close.remote() for actor in actors]
        runs.close()
        if closing:
            import ray

            with suppress(ray.exceptions.RayError):  # a lost actor has nothing to save
                ray.get(closing, timeout=LOCK_SECONDS)
            for actor in actors:
                ray.kill(actor)


def start(job: SweepJob, trial: Trial, seeds: list[int]) -> Any:
    """Starts an actor for some seeds of a trial, in this process's placement group; returns the actor."""
    import ray

    runtime = make_sweep(job.content).config(trial, seeds[0], Path(job.folder), job.url).runtime
    local = runtime.backend == "local"  # otherwise its workers have the resources
    options = {"num_cpus": runtime.cpus_per_worker if local else 0, "num_gpus": job.gpus if local else 0}
    remote = ray.remote(SeedActor)
    return remote.options(**options).remote(job, trial, seeds)


class SeedActor(SeedRuns):
    """`SeedRuns` as a Ray actor."""

    def __init__(self, job: SweepJob, trial: Trial, seeds: list[int]):
        set_up(job)
        super().__init__(job, trial, seeds)
