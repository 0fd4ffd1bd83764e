"""batch_idx: a step that only hands it on is replayed; one that uses it gets the number of the local step."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from lightning import LightningModule
from torch import nn

import raylfl
from raylfl.errors import BadConfig
from raylfl.runtime.workers.batch_index import IndexUsed, Unused
from tests.runtime.tiny import TINY


def kept(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Base(LightningModule):
    """Lightning's usual form: a step shared by training and validation."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def shared(self, batch, batch_idx, stage):
        x, y = batch
        return nn.functional.cross_entropy(self.body(x), y)

    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx, "train")


class BySuper(Base):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


class Rest(Base):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class Decorated(Base):
    @kept
    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx=batch_idx, stage="train")


class Weighted(Base):
    def shared(self, batch, batch_idx, stage):
        return super().shared(batch, batch_idx, stage) * (1 + batch_idx)


class OfTensor(Base):
    def shared(self, batch, batch_idx, stage):
        return super().shared(batch, batch_idx, stage) + 0 * batch[0].sum() * batch_idx


class Branching(Base):
    def shared(self, batch, batch_idx, stage):
        return super().shared(batch, batch_idx, stage) * (2 if batch_idx else 1)


class Named(Base):
    def shared(self, batch, batch_idx, stage):
        try:
            f"{stage} {batch_idx}"
        except Exception:
            return None
        return super().shared(batch, batch_idx, stage)


class Typed(Base):
    def shared(self, batch, batch_idx, stage):
        return super().shared(batch, batch_idx, stage) * (1 + isinstance(batch_idx, int))


class DecoratedUse(Weighted):
    @kept
    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx, "train")


class Late(Base):
    """Uses the index in batches of one sample only."""

    def shared(self, batch, batch_idx, stage):
        loss = super().shared(batch, batch_idx, stage)
        return loss * batch_idx if len(batch[1]) > 1 else loss


def run(kind, runs, *options):
    config = {**TINY, "model": {"class_path": f"{__name__}.{kind}"}, "data": {"name": "digits"}}
    return raylfl.run(config, [*runs, "rounds=3", "local.steps=4", "runtime.vectorize=never", *options])


@pytest.mark.parametrize("kind", ["Base", "BySuper", "Rest", "Decorated"])
def test_a_step_that_only_hands_the_index_on_is_replayed_with_the_same_bits(runs, kind):
    ours, theirs = run(kind, runs), run(kind, runs, "runtime.step=autograd")
    assert {row["step"] for row in ours.summary["local_steps"]} == {"recorded", "autograd"}
    assert torch.equal(ours.params, theirs.params)


@pytest.mark.parametrize("kind", ["Weighted", "OfTensor", "Branching", "Named", "Typed", "DecoratedUse"])
def test_a_step_that_uses_the_index_gets_the_number_of_the_local_step(runs, kind):
    ours, theirs = run(kind, runs), run(kind, runs, "runtime.step=autograd")
    assert [row["why"] for row in ours.summary["local_steps"]] == ["training_step uses batch_idx"]
    assert torch.equal(ours.params, theirs.params)
    plain = run("Base", runs, "runtime.step=autograd")
    assert torch.equal(ours.params, plain.params) == (kind in ("OfTensor", "Named"))


def test_a_use_that_the_trial_did_not_reach_is_an_error_and_not_a_wrong_number(runs):
    with pytest.raises(BadConfig, match=r"Late.training_step uses batch_idx in this step.*runtime.step=autograd"):
        run("Late", runs)
    run("Late", runs, "runtime.step=autograd")


@pytest.mark.parametrize(
    "use",
    [
        lambda k: k + 1,
        lambda k: 1 + k,
        lambda k: -k,
        lambda k: k == 0,
        lambda k: k % 2,
        lambda k: [1, 2][k],
        lambda k: range(k),
        lambda k: {k: 1},
        lambda k: f"{k}",
        lambda k: str(k),
        lambda k: isinstance(k, int),
        lambda k: k.bit_length(),
        lambda k: torch.ones(2) * k,
        lambda k: torch.ones(2)[k],
        lambda k: not k,
        list,
    ],
)
def test_any_use_of_the_stand_in_is_noticed(use):
    with pytest.raises(IndexUsed):
        use(Unused())
