"""Runs with recorded steps of modules whose steps have effects: their results are those of autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import raylfl
from raylfl.errors import BadConfig
from tests.runtime.tiny import TINY, Net

CONFIG = {
    **TINY,
    "rounds": 4,
    "num_clients": 3,
    "participation": {"name": "full"},
    "link": {"name": "perfect"},
    "eval": {"every": 4},  # an evaluation compares the state in any case
    "local": {"steps": 10, "batch_size": 3, "lr": 0.05},
}
SETTINGS = {"scale": 1.0}


class Plain(Net):
    def __init__(self):
        super().__init__(norm=False, dropout=0.0)


class Anchored(Plain):
    """A network that copies its weights into a buffer in the first step of a client's local work."""

    def __init__(self):
        super().__init__()
        self.started = False
        self.register_buffer("anchor", torch.zeros(3, 6))

    def training_step(self, batch, batch_idx):
        weight = self.body[-1].weight
        if not self.started:
            self.anchor.copy_(weight.detach())
            self.started = True
        return super().training_step(batch, 0) + (weight - self.anchor).pow(2).sum()


class Epochs(Plain):
    """A network that counts the batches that are smaller than the others, of which there is one per pass."""

    def __init__(self):
        super().__init__()
        self.passed = 0

    def training_step(self, batch, batch_idx):
        self.passed += len(batch[0]) < 3
        return super().training_step(batch, 0) * (1 + self.passed)


class Scaled(Plain):
    """A network that reads a global setting, which changes between rounds."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, 0) * SETTINGS["scale"]


class Tuned(Net):
    """A network with a plain tensor of class weights, whose step sets a frozen part to evaluation mode."""

    def __init__(self):
        super().__init__()
        self.costs = torch.tensor([0.5, 1.0, 2.0])
        self.frozen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        self.frozen.eval()
        x, y = batch
        return F.cross_entropy(self.body(self.frozen(x)), y, weight=self.costs)


class Growing(raylfl.Callback):
    def on_round_end(self, *args, **options):
        SETTINGS["scale"] *= 2


class Seen(Plain):
    """A network that logs a counter and a parameter before it changes them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def training_step(self, batch, batch_idx):
        self.log("seen", self.seen)
        self.log("bias", self.body[-1].bias[0])
        self.seen += 1
        return super().training_step(batch, 0)


def both(runs, model, vectorize="never", every=4):
    found = []
    for step in ("auto", "autograd"):
        SETTINGS["scale"] = 1.0
        overrides = [*runs, f"runtime.step={step}", f"runtime.vectorize={vectorize}", f"eval.every={every}"]
        found.append(raylfl.run(CONFIG, overrides, model=model, callbacks=[Growing()]))
    assert torch.equal(found[0].params, found[1].params)
    return found


@pytest.mark.parametrize("model", [Anchored, Epochs])
def test_steps_that_depend_on_other_steps_have_autograds_results(runs, model):
    ours, _ = both(runs, model)
    reasons = {row["why"] for row in ours.summary["local_steps"]}
    changed = {Anchored: "`started`", Epochs: "`passed`"}[model]
    assert any(changed in reason for reason in reasons), reasons


def test_a_global_that_changes_between_rounds_ends_the_run(runs):
    """Its replays of the first round were right: the setting changed after them."""
    words = r"^round 1, client 0: Scaled.training_step .* differs by 5.0e-01 .*\(set runtime.step=autograd\)"
    with pytest.raises(BadConfig, match=words):
        both(runs, Scaled)


def test_values_are_logged_as_they_are_at_the_call(runs):
    rows = [run.metrics for run in both(runs, Seen)]
    for name in ("train/seen", "train/bias"):
        assert [row[name] for row in rows[0]] == [row[name] for row in rows[1]]
    assert rows[1][0]["train/seen"] == 4.5  # the mean of 0 to 9


def test_steps_that_freeze_a_part_or_read_plain_tensors_are_replayed_between_evaluations(runs):
    ours, theirs = both(runs, Tuned, every=1)
    assert {row["step"] for row in ours.summary["local_steps"]} == {"recorded", "autograd"}
    assert not [row["why"] for row in ours.summary["local_steps"] if row["why"].startswith("training_step")]
    for name in ("test/loss", "train/loss"):
        assert [row.get(name) for row in ours.metrics] == [row.get(name) for row in theirs.metrics]
