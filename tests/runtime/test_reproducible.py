"""The same bits on any worker, in any order and after any other task; in fresh processes, too."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.core.deferred import Deferred
from raylfl.runtime import inprocess
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.worker import Worker
from tests.runtime.faults import carry_out, options_of, outcome
from tests.runtime.tiny import TINY, rude


class Crowd(LocalBackend):
    """Several workers, each task to a random one, in random order; answers in task order, as `Backend` wants it."""

    crowd = 7

    def __init__(self, setup):
        super().__init__(setup)
        self.others = [Worker(setup) for _ in range(self.crowd)]
        self.rng = np.random.default_rng()

    def _random_worker(self):
        self.worker = self.others[self.rng.integers(self.crowd)]

    def run(self, tasks, down, own):
        def outcomes():
            out = {}
            for k in self.rng.permutation(len(tasks)):
                self._random_worker()
                out[k] = self.attempt(tasks[k], down, own[k])
            return [out[k] for k in range(len(tasks))]

        return Deferred(outcomes)

    def attempt(self, task, down, own):
        self._random_worker()  # in a ring, too, each client has another worker
        return super().attempt(task, down, own)

    def evaluate(self, down, chunks):
        return Deferred(lambda: [self._measured("evaluate", down, chunk) for chunk in chunks])

    def objective(self, down, groups):
        return Deferred(lambda: [self._measured("objective", down, group) for group in groups])

    def _measured(self, what, down, part):
        self._random_worker()
        return getattr(super(), what)(down, [part]).result()[0]


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.parametrize("norm", [True, False], ids=["one by one", "vectorised"])
@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_it_does_not_matter_who_works_and_in_which_order(tmp_path, monkeypatch, algorithm, norm):
    model = {**TINY["model"], "init_args": {"norm": norm}}
    config = {**TINY, "algorithm": options_of(algorithm), "model": model, "rounds": 4, "num_clients": 12}
    config |= {"participation": {"name": "uniform", "size": 8}, "eval": {"every": 2, "global": True, "batch_size": 5}}
    carry_out(config, tmp_path / "one")
    monkeypatch.setattr(inprocess, "LocalBackend", Crowd)
    carry_out(config, tmp_path / "crowd")
    assert outcome(tmp_path / "crowd") == outcome(tmp_path / "one")


@pytest.mark.parametrize("norm", [True, False], ids=["one by one", "vectorised"])
def test_a_module_that_seeds_every_generator_changes_no_other_bits(tmp_path, monkeypatch, norm):
    """Neither another client's, nor its own in its next steps: the same bits as of the module that never seeds."""
    carry_out(rude(False, norm), tmp_path / "polite")
    before = torch.get_rng_state()
    carry_out(rude(True, norm), tmp_path / "one")
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr(inprocess, "LocalBackend", Crowd)
    carry_out(rude(True, norm), tmp_path / "crowd")
    assert outcome(tmp_path / "one") == outcome(tmp_path / "polite")
    assert outcome(tmp_path / "crowd") == outcome(tmp_path / "polite")


KINDS = ["focus", "fedaware", "sfl", "fedacs"]  # client states, a server's table and solver, a ring, its own sampling
RUNS = """
import sys
from pathlib import Path
from tests.runtime.faults import carry_out, options_of
from tests.runtime.tiny import TINY

for name in sys.argv[2:]:
    carry_out({**TINY, "rounds": 3, "algorithm": options_of(name)}, Path(sys.argv[1]) / name)
"""


@pytest.mark.slow
def test_fresh_processes_with_other_hash_seeds_agree_on_every_kind_of_algorithm(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUNS, str(tmp_path / seed), *KINDS], env=os.environ | {"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "271828")
    ]
    assert [process.wait(200) for process in processes] == [0, 0]
    for name in KINDS:
        assert outcome(tmp_path / "1" / name) == outcome(tmp_path / "271828" / name)
