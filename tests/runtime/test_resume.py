"""Runs that are stopped anywhere and resumed have equal bits: every algorithm, participation and phase of a round."""

import json
import os
import pathlib
import shutil
import signal

import pytest
import torch
import yaml

import raylfl
from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm
from raylfl.errors import BadConfig
from raylfl.runtime.session import Interrupted
from tests.runtime.faults import PHASES, carry_out, killed, log_of, options_of, outcome, strike
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import also, one_in

PARTICIPATION = {
    "full": {"name": "full"},
    "uniform": {"name": "uniform", "size": 3},
    "replaced": {"name": "uniform", "size": 3, "replace": True},
    "weighted": {"name": "weighted", "size": 3},
    "bernoulli": {"name": "bernoulli", "p": 0.4},
    "markov": {"name": "markov", "p_on": 0.4, "p_off": 0.3},
    "both": {"name": "uniform", "size": 2, "availability": {"name": "markov", "p_on": 0.4, "p_off": 0.3}},
    "cyclic": {"name": "cyclic", "groups": 2, "size": 2, "reshuffle": True},
    "sinusoid": {"name": "sinusoid", "p": 0.6, "period": 4},
    "staircase": {"name": "staircase", "p": 0.6, "period": 2},
    "permutation": {"name": "permutation", "size": 2},
}
SAMPLERS = ("uniform", "replaced", "weighted", "both", "cyclic", "permutation")  # for algorithms that sample themselves


def matrix():
    """Each algorithm with one participation, one phase and one round of the kill, all of which vary."""
    for number, entry in enumerate(ALGORITHMS):
        powers = ("probabilities", "samples_by_norm")
        samples = any(getattr(entry.cls, power) is not getattr(Algorithm, power) for power in powers)
        names = SAMPLERS if samples else tuple(PARTICIPATION)
        yield entry.name, names[number % len(names)], PHASES[number % len(PHASES)], 1 + number % 5


def with_algorithm(name):
    return {**TINY, "algorithm": options_of(name)}


@pytest.fixture
def resumed(tmp_path):
    """`resumed(config, phase, r)`: the folder of a run that was killed there and resumed into the undisturbed one.

    The killed run is a copy of the directory of the undisturbed one at that moment, as SIGKILL would leave it.
    """
    clean, stopped = tmp_path / "clean", tmp_path / "killed"

    def resume(config, phase, r):
        carry_out(config, clean, fault=lambda at, now: (at, now) == (phase, r) and shutil.copytree(clean, stopped))
        assert not (stopped / "summary.json").exists()
        carry_out(config, stopped, resume=True)
        assert outcome(stopped) == outcome(clean)
        return stopped

    return resume


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "participation", "phase", "r"), one_in(6, list(matrix())))
def test_a_killed_run_resumes_into_the_undisturbed_one(resumed, algorithm, participation, phase, r):
    resumed({**with_algorithm(algorithm), "participation": PARTICIPATION[participation]}, phase, r)


@pytest.mark.parametrize("algorithm", ["fedavg", also("focus"), "scaffnew", also("fedawe")])
def test_buffers_that_stay_with_the_clients_are_resumed_too(resumed, algorithm):
    config = with_algorithm(algorithm)
    resumed({**config, "local": {**config["local"], "buffers": "local"}}, "log", 4)


def test_adam_moments_and_a_replayed_trace_are_resumed(resumed, finished_run):
    replayed = {"name": "trace", "path": str(finished_run / "participation.jsonl")}
    config = {**with_algorithm("fedadam"), "rounds": 2, "participation": replayed, "link": {"name": "perfect"}}
    config |= {
        "local": {**TINY["local"], "steps": 5},
        "checkpoint": {"every": 1},
    }  # steps and losses are the recorded ones
    folder = resumed(config, "aggregate", 1)
    assert outcome(folder)["participation"] == (finished_run / "participation.jsonl").read_text()


def test_without_a_checkpoint_a_run_starts_again_from_round_0_and_says_so(resumed):
    assert "starting from round 0" in log_of(resumed(TINY, "log", 1))


def begun(runs, *overrides, rounds=4):
    """The directory of a run that was stopped after round 2 of `rounds`."""

    def watch(progress):
        if progress.metrics["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped before round 3: raylfl resume "):
        raylfl.run(TINY, [*runs, f"rounds={rounds}", "logging.id=it", *overrides], watch)
    return pathlib.Path(runs[0].removeprefix("logging.dir=")) / "tiny" / "it"


def test_a_stopped_run_resumes_through_the_interface_and_its_watcher_gets_each_round_once(runs):
    folder, seen = begun(runs, "checkpoint.every=0"), []
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["round_000003"]
    assert not (folder / "summary.json").exists()
    again = raylfl.resume(folder, watch=lambda progress: seen.append(progress.metrics["round"]))
    assert seen == [0, 1, 2, 3]
    clean = raylfl.run(TINY, [*runs, "rounds=4"])
    assert torch.equal(again.params, clean.params)
    assert outcome(folder) == outcome(clean.run_dir)


def test_rounds_may_be_raised_and_give_what_a_longer_run_gives(runs):
    short = raylfl.run(TINY, [*runs, "rounds=3", "eval.every=1"])
    longer = raylfl.resume(short.run_dir, ["rounds=6"])
    clean = raylfl.run(TINY, [*runs, "rounds=6", "eval.every=1"])
    assert outcome(longer.run_dir) == outcome(clean.run_dir)
    assert yaml.safe_load((short.run_dir / "config.yaml").read_text())["rounds"] == 6
    assert json.loads((short.run_dir / "summary.json").read_text())["rounds"] == 6


def test_a_run_to_which_rounds_are_added_is_unfinished_meanwhile(finished):
    config = yaml.safe_load((finished / "config.yaml").read_text())
    killed(lambda: carry_out(config, finished, ["rounds=4"], resume=True, fault=strike("commit", 2)))
    assert not (finished / "summary.json").exists()


def test_a_change_of_keys_that_define_the_run_is_refused_with_their_names(runs):
    folder = begun(runs)
    before = (folder / "config.yaml").read_text()
    for overrides, words in (
        (["local.lr=0.1"], "local.lr: 0.05 -> 0.1"),
        (["algorithm.name=focus"], "algorithm.name: fedavg -> focus"),
        (["seed=1", "participation.size=2"], "participation.size: 3 -> 2, seed: 0 -> 1"),
        (["rounds=2"], "rounds=2, but must be >= 4"),
        (["runtime.threads=2"], "runtime.threads: 1 -> 2"),
        (["local.lrr=0.1"], "unknown key local.lrr"),
    ):
        with pytest.raises(BadConfig) as caught:
            raylfl.resume(folder, overrides)
        assert words in str(caught.value)
        assert (folder / "config.yaml").read_text() == before


def test_phases_that_would_move_refuse_more_rounds(runs):
    phased = "participation={name: bernoulli, p: {phases: [{until: 0.5, uniform: [0.1, 0.5]}, {uniform: [0.5, 1.0]}]}}"
    folder = begun(runs, phased)
    with pytest.raises(BadConfig, match=r"rounds=8, but must stay 4: participation has values in phases"):
        raylfl.resume(folder, ["rounds=8"])


def test_what_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(BadConfig, match=r"no config\.yaml"):
        raylfl.resume(tmp_path)
    (tmp_path / "config.yaml").write_text("rounds: [1,\n")
    with pytest.raises(BadConfig, match="not readable yaml"):
        raylfl.resume(tmp_path)
