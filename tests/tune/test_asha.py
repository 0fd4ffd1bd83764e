"""ASHA over settings, on a stand-in for Ray Tune's loop: the seeds of a setting continue or stop together."""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from raylfl.tune.asha import SettingAsha
from raylfl.tune.journal import Trial
from raylfl.tune.searchers import PlannedSearcher
from raylfl.tune.slots import TrialSlots

PENDING, RUNNING, PAUSED, TERMINATED, ERROR = "PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"


class Tuner:
    """The part of Ray Tune's loop that schedulers and searchers use; a random running trial reports next.

    score: (setting, seed, rounds done) -> score. A trial that continues after a pause reports its rounds again, like a
    resumed run. fate: trial id -> (rounds, `error` or `diverged`).
    """

    def __init__(self, score, rounds, settings, seeds, limit=None, reduction=3.0, grace=1, seed=0, fate=None, kinds=1):
        self.score, self.rounds, self.rng, self.fate = score, rounds, random.Random(seed), fate or {}
        self.slots = TrialSlots(limit)
        self.plan = [
            Trial(f"{k}-s{s}", 0, k, s, rounds, {"algorithm.name": f"method{k % kinds}", "local.lr": k})
            for k in range(settings)
            for s in range(seeds)
        ]
        self.searcher = PlannedSearcher(self.plan, self.slots)
        self.scheduler = SettingAsha(grace, reduction, rounds, seeds, self.slots)
        self.trials, self.done, self.most = [], defaultdict(int), 0

    def get_trials(self):
        return self.trials

    def stop_trial(self, trial):
        assert trial.status == PAUSED
        self.scheduler.on_trial_remove(self, trial)
        self.end(trial)

    def end(self, trial, status=TERMINATED):
        trial.status = status
        self.searcher.on_trial_complete(trial.trial_id)

    def run(self, steps=10_000):
        """Rounds done by trial id, once all trials have ended."""
        for step in range(steps):
            config = None if self.searcher.complete else self.searcher.suggest(str(step))
            if isinstance(config, dict):
                self.trials.append(SimpleNamespace(trial_id=str(step), config=config, status=PENDING, reported=0))
            chosen = self.scheduler.choose_trial_to_run(self)
            for trial in [chosen, *(t for t in self.trials if t.status == PENDING)]:
                if trial is not None:
                    trial.status, trial.reported = RUNNING, 0
            running = [trial for trial in self.trials if trial.status == RUNNING]
            self.most = max(self.most, len(running))
            if running:
                self.report(self.rng.choice(running))
            elif self.searcher.complete and all(t.status in (TERMINATED, ERROR) for t in self.trials):
                return {t.config["trial"]["id"]: self.done[t.config["trial"]["id"]] for t in self.trials}
        raise AssertionError("it waits for ever")

    def report(self, trial):
        own = trial.config["trial"]
        trial.reported += 1
        self.done[own["id"]] = max(self.done[own["id"]], trial.reported)
        at, how = self.fate.get(own["id"], (None, None))
        result = {"round": trial.reported, "score": self.score(own["setting"], own["seed"], trial.reported)}
        if trial.reported == at and how == "error":
            self.scheduler.on_trial_error(self, trial)
            self.end(trial, ERROR)
            return
        if trial.reported == at:
            result = {"round": self.rounds, "score": -1e30, "state": "diverged"}
        decision = self.scheduler.on_trial_result(self, trial, result)
        if "state" in result or decision == "STOP" or trial.reported == self.rounds:
            assert not ("state" in result and decision == "PAUSE")
            self.scheduler.on_trial_complete(self, trial, result)
            self.end(trial)
        elif decision == "PAUSE":
            trial.status = PAUSED


def by_setting(done):
    found = defaultdict(list)
    for name, rounds in done.items():
        found[int(name.split("-")[0])].append(rounds)
    return dict(found)


@pytest.mark.parametrize("limit", [1, 2, 5, None])
@pytest.mark.parametrize("seed", range(10))
def test_the_seeds_of_a_setting_continue_or_stop_together(seed, limit):
    """This holds for any order, with scores that differ more between seeds than between settings."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(9, 3, 28))
    tuner = Tuner(lambda k, s, r: table[k, s, r], 27, 9, 3, limit, seed=seed)
    done = by_setting(tuner.run())
    assert len(done) == 9
    assert all(len(set(rounds)) == 1 and len(rounds) == 3 for rounds in done.values())
    assert {rounds[0] for rounds in done.values()} <= {1, 3, 9, 27}
    assert any(rounds[0] == 27 for rounds in done.values())
    assert sum(rounds[0] == 27 for rounds in done.values()) < 9
    assert limit is None or tuner.most <= limit
    assert not tuner.slots.taken


def test_the_mean_of_the_seeds_decides_and_not_the_best_seed():
    """Two settings, the better one in turn by seed 0 and by the mean; reduction 2: the second must beat the first."""
    means = {0: (0.5, 0.5), 1: (0.9, 0.0), 2: (0.6, 0.6)}
    done = by_setting(Tuner(lambda k, s, r: means[k][s], 4, 3, 2, 1, reduction=4.0).run())
    assert done == {0: [4, 4], 1: [1, 1], 2: [4, 4]}


def test_the_cut_is_that_of_the_paper_among_earlier_settings():
    """A setting continues past a rung if it is at or above the (1 - 1/reduction) quantile of earlier settings."""
    score = np.random.default_rng(0).normal(size=20)
    done = by_setting(Tuner(lambda k, s, r: score[k], 9, 20, 1, 1).run())
    rungs = {1: [], 3: []}
    for k in range(20):
        expected = 9
        for rung, seen in rungs.items():
            beaten = not seen or score[k] >= np.quantile(seen, 2 / 3)
            seen.append(score[k])
            if not beaten:
                expected = rung
                break
        assert done[k] == [expected]


def test_kinds_do_not_compete():
    """The second method is always worse, but its best setting finishes."""
    done = by_setting(Tuner(lambda k, s, r: -(k % 2) - 0.01 * k, 9, 6, 2, 1, kinds=2).run())
    assert done[0] == done[1] == [9, 9]


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_that_fails_for_good_does_not_delay_the_others(seed):
    done = Tuner(
        lambda k, s, r: float(k), 9, 4, 3, 2, seed=seed, fate={"1-s1": (1, "error"), "2-s0": (4, "error")}
    ).run()
    assert {done[f"1-s{s}"] for s in (0, 2)} in ({1}, {3}, {9})
    assert len({done[f"3-s{s}"] for s in range(3)}) == 1


def test_a_setting_with_a_seed_that_diverged_is_stopped():
    done = Tuner(lambda k, s, r: 1.0, 9, 3, 2, 1, fate={"1-s0": (1, "diverged")}).run()
    assert done == {"0-s0": 9, "0-s1": 9, "1-s0": 1, "1-s1": 1, "2-s0": 9, "2-s1": 9}


@pytest.mark.parametrize("seed", range(10))
def test_a_resumed_sweep_keeps_its_decisions(seed):
    """After a kill anywhere, no stopped setting continues, and no promoted setting is stopped at the same rung."""
    table = np.random.default_rng(seed).normal(size=(8, 2, 28))
    first = Tuner(lambda k, s, r: table[k, s, r], 27, 8, 2, 3, seed=seed)
    with pytest.raises(AssertionError, match="for ever"):
        first.run(steps=60)
    decided = dict(first.scheduler.passed)
    ended = {t.config["trial"]["id"] for t in first.trials if t.status == TERMINATED}

    def scores(own):
        return [(r, table[own["setting"], own["seed"], r]) for r in range(1, first.done[own["id"]] + 1)]

    def state(own):
        return ("finished" if first.done[own["id"]] == 27 else "stopped") if own["id"] in ended else ""

    again = Tuner(lambda k, s, r: table[k, s, r], 27, 8, 2, 3, seed=seed + 100)
    started = [t.config["trial"] for t in first.trials if first.done[t.config["trial"]["id"]]]
    again.scheduler.replay((own, scores(own), state(own)) for own in started)
    again.searcher.waiting = [trial for trial in again.plan if trial.id not in ended]
    done = {name: first.done[name] for name in ended} | again.run()
    reached = by_setting(done)
    assert all(len(set(rounds)) == 1 for rounds in reached.values())
    for (setting, rung), on in decided.items():
        if not on:
            assert set(reached[setting]) == {rung}
        elif any(first.done[f"{setting}-s{s}"] > rung for s in range(2)):
            assert min(reached[setting]) > rung


def test_what_was_decided_in_another_order_is_not_decided_again():
    """The weakest setting came first and continued; the best stopped the second best, which is read back before it."""
    ends = {0: (0.1, 2, ""), 1: (0.5, 1, "stopped"), 2: (0.9, 4, "finished")}
    for settings in ([2, 0, 1], [1, 2, 0], [0, 1, 2]):
        scheduler = SettingAsha(1, 2.0, 4, 1, TrialSlots())
        scheduler.replay(
            ({"setting": k, "seed": 0, "values": {}}, [(r + 1, ends[k][0]) for r in range(ends[k][1])], ends[k][2])
            for k in settings
        )
        assert scheduler.passed == {(0, 1): True, (1, 1): False, (2, 1): True, (2, 2): True}
