"""Steps that change their batch in place, against a plain loop whose every step has a batch of its own."""

import copy
from functools import cache, partial

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

import raylfl
from raylfl.core.vectorized import VectorizedOracle
from raylfl.runtime.session import rows_in_process
from raylfl.testing.runs import RandomWorkers, carry_out, outcome
from tests.runtime.measured import rounds_of
from tests.runtime.plain import fedavg
from tests.runtime.tiny import OWNED, Points
from tests.shares import also, one_in

WAYS = {
    "add": lambda x: x.add_(0.5),
    "out": lambda x: torch.mul(x, 2.0, out=x),
    "view": lambda x: x[:, 1:].sub_(1.0),
    "shift": lambda x: x.add_(0.01),  # so small that a second change is no obvious difference
}


class Changing(LightningModule):
    """A step, and an evaluation, that change their inputs in place before they use them."""

    def __init__(self, way: str = "add", conv: bool = False):
        super().__init__()
        layers = [nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 3)]
        self.way, self.body = way, nn.Sequential(*layers) if conv else nn.Linear(4, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        WAYS[self.way](x)
        return nn.functional.cross_entropy(self.body(x), y)

    def test_step(self, batch, batch_idx):
        WAYS[self.way](batch[0])  # logs no loss, so the training loss of the batch is measured


def config(way, conv, size):
    return {
        **OWNED,
        "rounds": 2,
        "model": {"class_path": "tests.runtime.test_own_batches.Changing", "init_args": {"way": way, "conv": conv}},
        "local": {"steps": 4, "batch_size": size, "lr": 0.1},
        "eval": {"every": 1, "batch_size": 7},
    }


@pytest.fixture(scope="module")
def initial(tmp_path_factory):
    """`initial(conv)`: a copy of the initial model, which depends on its layers only."""
    place = [f"logging.dir={tmp_path_factory.mktemp('initial')}", "rounds=0"]
    made = cache(lambda conv: raylfl.run(config("add", conv, "full"), place).module)
    return lambda conv: copy.deepcopy(made(conv))


STEPS = [("add", False), ("add", True), ("out", False), ("view", False), ("shift", False)]
FORMS = ["vectorize=never", "vectorize=auto", "vectorize=always", "step=autograd"]


@pytest.mark.parametrize(("way", "conv", "runtime"), one_in(5, [(*step, form) for step in STEPS for form in FORMS]))
def test_every_step_has_a_batch_of_its_own(initial, way, conv, runtime):
    result, module, data = rounds_of(config(way, conv, "full"), [f"runtime.{runtime}"]), initial(conv), Points()
    module.way = way
    batches = zip(data.x.chunk(6), data.targets.chunk(6), strict=True)
    expected = fedavg(module.train, nn.utils.parameters_to_vector(module.parameters()).detach(), [*batches], 2, 4)
    torch.testing.assert_close(result.params, expected, rtol=1e-5, atol=1e-6)
    nn.utils.vector_to_parameters(expected, module.parameters())
    loss = module.training_step((data.x[::3].clone(), data.targets[::3]), 0).item()
    assert result.metrics[-1]["test/loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("vectorize", "size"), [("auto", 4), also("never", "full")])
def test_no_worker_sees_what_a_step_has_changed(tmp_path, vectorize, size):
    setting = config("add", False, size)
    carry_out(setting, tmp_path / "one", [f"runtime.vectorize={vectorize}"])
    crowd = partial(rows_in_process, make=RandomWorkers)
    carry_out(setting, tmp_path / "crowd", [f"runtime.vectorize={vectorize}"], rows=crowd)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "crowd")


@pytest.mark.parametrize("step", ["auto", also("autograd")])
def test_a_comparison_has_the_batch_as_it_was_before_the_step(step, monkeypatch):
    """Clients together are compared with the reference again and again, after evaluations, too."""
    prove, samples, compared = VectorizedOracle._prove, {tuple(row) for row in Points().x.tolist()}, []

    def watched(oracle, call, draws=False):
        prove(oracle, call, draws)  # takes the reference step on the content, more than once if the results differ
        compared.append({tuple(row) for row in call.content[0].flatten(0, 1).tolist()} <= samples)

    monkeypatch.setattr(VectorizedOracle, "_prove", watched)
    losses = {}
    for vectorize in ("always", "never"):
        given = [f"runtime={{backend: local, vectorize: {vectorize}, step: {step}}}", "rounds=5"]
        losses[vectorize] = [row["train/loss"] for row in rounds_of(config("shift", False, 4), given).metrics]
    assert len(compared) > 5
    assert all(compared)
    assert losses["always"] == pytest.approx(losses["never"], rel=1e-5)
