"""ASHA in a sweep is Ray Tune's own, one for each kind of setting; a resumed sweep keeps its decisions."""

from types import SimpleNamespace

import numpy as np
import pytest
from ray.tune.schedulers import ASHAScheduler

from raylfl.tune.journal import Trial
from raylfl.tune.spec import SchedulerConfig
from raylfl.tune.tuner import build_scheduler

CONTINUE, STOP = "CONTINUE", "STOP"


def trial_of(setting, method="fedavg"):
    return Trial(f"{setting:03d}", setting, [0], {"algorithm.name": method, "local.lr": setting}, ["run"])


def by_ray(trial, ray_id=None):
    fields = {"id": trial.id, "values": trial.values}
    return SimpleNamespace(trial_id=ray_id or f"ray-{trial.id}", config={"setting": fields})


def report(scheduler, trial, done, score):
    return scheduler.on_trial_result(None, by_ray(trial), {"round": done, "score": score})


def started(trials, earlier=(), rounds=27, **options):
    config = SchedulerConfig(**{"name": "asha", "grace": 1, "reduction": 3.0, **options})
    scheduler = build_scheduler(config, rounds, "max", earlier)
    for trial in trials:
        scheduler.on_trial_add(None, by_ray(trial))
    return scheduler


@pytest.mark.parametrize(
    ("rounds", "grace", "reduction"), [(27, 1, 3), (100, 7, 2.5), (9, 9, 3), (9, 40, 2), (1, None, 3)]
)
def test_the_rungs_are_ray_tunes(rounds, grace, reduction):
    asha = SchedulerConfig("asha", grace, reduction)
    plain = ASHAScheduler(max_t=rounds, grace_period=min(grace or 1, rounds), reduction_factor=reduction)
    theirs = sorted(int(np.ceil(rung - 1e-9)) for rung, _ in plain._brackets[0]._rungs)
    assert asha.rungs(rounds) == [rung for rung in theirs if rung < rounds]


def test_settings_of_one_kind_are_stopped_as_ray_tune_stops_them():
    """Random scores of 30 settings in random order: the decisions of a plain ASHAScheduler, trial by trial."""
    rng = np.random.default_rng(0)
    trials, plain = [trial_of(k) for k in range(30)], ASHAScheduler("round", "score", "max", 27, 1, 3)
    scheduler = started(trials)
    for trial in trials:
        plain.on_trial_add(None, by_ray(trial, trial.id))
    decisions, alive = [], {trial.id: (trial, 0) for trial in trials}
    while alive:
        trial, done = alive.pop(list(alive)[rng.integers(len(alive))])
        result = {"round": done + 1, "score": rng.normal()}
        decisions.append(scheduler.on_trial_result(None, by_ray(trial), result))
        assert decisions[-1] == plain.on_trial_result(None, by_ray(trial, trial.id), result)
        if decisions[-1] == CONTINUE:
            alive[trial.id] = trial, done + 1
    assert set(decisions) == {CONTINUE, STOP}


def test_kinds_do_not_compete():
    """The second method is always worse, but its best setting continues."""
    good, better, poor, poorer = trial_of(0), trial_of(1), trial_of(2, "focus"), trial_of(3, "focus")
    scheduler = started([good, better, poor, poorer])
    ends = [
        report(scheduler, trial, 1, score) for trial, score in ((better, 0.9), (good, 0.8), (poor, 0.2), (poorer, 0.1))
    ]
    assert ends == [CONTINUE, STOP, CONTINUE, STOP]


def test_a_resumed_sweep_keeps_its_decisions_and_goes_on_comparing():
    """Setting 0 continued first; 1 was stopped by it; 2 continued as the best, and is repeated under a new Ray id."""
    trials = [trial_of(k) for k in range(4)]
    earlier = [
        (trials[0], [(r, 0.5) for r in range(1, 28)]),
        (trials[1], [(1, 0.1)]),
        (trials[2], [(1, 0.9), (2, 0.9)]),
    ]
    for order in (earlier, earlier[::-1]):
        scheduler = started(trials[2:], order)
        assert [report(scheduler, trials[2], r, 0.0) for r in (1, 2)] == [CONTINUE] * 2  # decided before the pause
        assert report(scheduler, trials[3], 1, 0.3) == STOP  # below the best third of three settings
        assert report(scheduler, trials[2], 3, 0.4) == STOP  # below setting 0, which did all rounds
