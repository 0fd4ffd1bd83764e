"""batch_idx: every form of the step gets the number of the local step, as in a loop written out."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from lightning import LightningModule
from torch import nn

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.python.api import checked
from tests.shares import one_in

STEPS = 6
X = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
SCALES = [1.0, 1.0, 1.0, 3.0, 1.0, 1.0]


class Rows:
    def __init__(self):
        self.train_dataset = self.test_dataset = torch.utils.data.TensorDataset(X, Y)


def kept(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Base(LightningModule):
    """Lightning's usual form: a step shared by training and validation."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 2)

    def factor(self, batch, batch_idx):
        return 1.0

    def shared(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.body(batch[0]), batch[1]) * self.factor(batch, batch_idx)

    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        self.log("loss", nn.functional.cross_entropy(self.body(batch[0]), batch[1]))


class Rest(Base):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class Decorated(Base):
    @kept
    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx=batch_idx)


class Weighted(Base):
    def factor(self, batch, batch_idx):
        return 1 + batch_idx


class Tensors(Base):
    def factor(self, batch, batch_idx):
        return torch.tensor(SCALES)[batch_idx]


class Listed(Base):
    """Reads a list, in which only one entry is different."""

    def factor(self, batch, batch_idx):
        return SCALES[batch_idx % len(SCALES)]


class Fifth(Base):
    def factor(self, batch, batch_idx):
        return 3 if batch_idx == 4 else 1


class Tripled(Base):
    """The plain cross-entropy, which has a translation, except in one local step."""

    def shared(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.body(batch[0]), batch[1])
        return 3 * loss if batch_idx == 3 else loss


class Late(Tripled):
    """The same, in a local step that no trial step has the number of."""

    def shared(self, batch, batch_idx):
        return super().shared(batch, 3 if batch_idx == 8 else 0)


class First(Base):
    def factor(self, batch, batch_idx):
        return 1 if batch_idx else 3


class Typed(Base):
    def factor(self, batch, batch_idx):
        return 2 if type(batch_idx) is int else 1


class Guarded(Base):
    def factor(self, batch, batch_idx):
        try:
            return [1, 1, 2][batch_idx]
        except IndexError:
            return 3


class LogsThird(Base):
    def factor(self, batch, batch_idx):
        if batch_idx == 2:
            self.log("third", batch[0].mean())
        return 1


CONFIG = {
    "name": "index",
    "rounds": 4,
    "algorithm": {"name": "fedavg"},
    "num_clients": 2,
    "partition": {"name": "iid"},
    "participation": {"name": "full"},
    "local": {"steps": STEPS, "batch_size": "full", "lr": 0.1},
    "runtime": {"backend": "local"},
}


def run(kind, runs, *options):
    return raylfl.run(CONFIG, [*runs, *options], model=kind, data=Rows)


def loop(kind, start, shards):
    """FedAvg with full batches, written out."""
    module = kind()
    module.log = lambda *args, **options: None
    x = start
    for _ in range(CONFIG["rounds"]):
        ends = []
        for rows in shards:
            nn.utils.vector_to_parameters(x.clone(), module.parameters())
            for t in range(STEPS):
                module.zero_grad()
                module.training_step((X[rows], Y[rows]), t).backward()
                with torch.no_grad():
                    for p in module.parameters():
                        p -= 0.1 * p.grad
            ends.append(nn.utils.parameters_to_vector(module.parameters()).detach())
        x = torch.stack(ends).mean(0)
    return x


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """(the initial parameters, the sample indices of the clients) of these runs, which do not depend on the step."""
    named = {
        "model": {"class_path": "tests.runtime.test_batch_index.Base"},
        "data": {"class_path": "tests.runtime.test_batch_index.Rows"},
    }
    place = [f"logging.dir={tmp_path_factory.mktemp('initial')}", "rounds=0"]
    setup = checked(load_config({**CONFIG, **named})).setup
    return run(Base, place).params, [torch.from_numpy(setup.shards[c]) for c in range(2)]


KINDS = [Base, Rest, Decorated, Weighted, Tensors, Listed, Fifth, Tripled, First, Typed, Guarded, LogsThird]


@pytest.mark.parametrize(
    ("kind", "vectorize"),
    [*((kind, "auto") for kind in KINDS), *one_in(2, [(kind, "never") for kind in KINDS])],
)
def test_each_step_gets_its_number(runs, prepared, kind, vectorize):
    found = run(kind, runs, f"runtime.vectorize={vectorize}")
    torch.testing.assert_close(found.params, loop(kind, *prepared), rtol=1e-5, atol=1e-6)
    if kind is LogsThird:
        assert all(abs(row["train/third"]) > 0 for row in found.metrics)


@pytest.mark.parametrize("kind", [Base, Rest, Decorated])
def test_a_step_that_only_hands_the_number_on_is_replayed_with_the_same_bits(runs, kind):
    ours, theirs = (run(kind, runs, "runtime.vectorize=never", f"runtime.step={step}") for step in ("auto", "autograd"))
    assert {row["step"] for row in ours.summary["local_steps"]} == {"recorded", "autograd"}
    assert torch.equal(ours.params, theirs.params)


def test_a_translation_that_differs_at_a_number_beyond_the_trial_ends_the_run(runs):
    words = r"round 0, client 0: Late.training_step .*matrix products\): loss differs by 6.7e-01 .*, in local step 8"
    with pytest.raises(BadConfig, match=words):
        run(Late, runs, "local.steps=10")
    run(Late, runs, "local.steps=10", "runtime.vectorize=never")


def test_a_step_that_differs_at_one_number_only_is_an_error_when_recorded_steps_are_demanded(runs):
    with pytest.raises(BadConfig, match=r"runtime.step=recorded, but Fifth.training_step has other results"):
        run(Fifth, runs, "runtime.vectorize=never", "runtime.step=recorded")
