"""Gradient accumulation (`local.accumulate`): plain loops in PyTorch, and runs with batches as large as all parts."""

import copy

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

import raylfl
from raylfl.core.batches import BatchOrders
from raylfl.errors import BadConfig
from tests.runtime.measured import rounds_of
from tests.runtime.tiny import OWNED, Points
from tests.shares import one_in

LOCAL = {"epochs": 2, "batch_size": 4, "accumulate": 2, "lr": 0.1}  # ten samples: batches 0 1, 2 | 3 4, 5 | ...
STEPS = [[0, 1], [2], [3, 4], [5]]
CONFIG = {
    **OWNED,
    "rounds": 2,
    "dtype": "float64",
    "model": {"class_path": "tests.runtime.test_accumulate.Normalised"},
    "local": LOCAL,
    "eval": {"every": 1},
}


class Normalised(LightningModule):
    """Batch normalisation: the gradient of two batches is not that of one batch of all their samples."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)
        )

    def training_step(self, batch, batch_idx):
        self.log("number", float(batch_idx))
        return nn.functional.cross_entropy(self.body(batch[0]), batch[1]) * (1 + 0.1 * batch_idx)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]  # an epoch has two steps


class Hooked(Normalised):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        pass


def loop(net, make_optimizer, clip_norm=None, decay=1.0, steps=STEPS):
    """FedAvg with accumulated gradients, written out: `backward` of each batch's share of the step's mean loss."""
    data, clients = Points(), range(6)
    losses = []
    for r in range(2):
        ends, losses = [], []
        for c in clients:
            client = Normalised().double()
            client.load_state_dict(net.state_dict())
            (optimizer, *schedulers), indices = make_optimizer(client), Points(6).client_indices[c]
            orders = BatchOrders(0, r, [c], [indices], [4], "reshuffle")
            for t, step in enumerate(steps):
                batches = [orders.indices(number, [0])[0] for number in step]
                count = sum(map(len, batches))
                optimizer.zero_grad()
                mean = 0.0
                for number, rows in zip(step, batches, strict=True):
                    client.log = lambda *_: None
                    batch = (data.x[rows].double(), data.targets[rows])
                    loss = client.training_step(batch, number) * (len(rows) / count)
                    loss.backward()
                    mean += loss.item()
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(client.parameters(), clip_norm)
                optimizer.param_groups[0]["lr"] *= decay if t else 1.0
                optimizer.step()
                for scheduler in schedulers if t % 2 else []:
                    scheduler.step()
                losses.append(mean)
            ends.append([p.detach() for p in client.parameters()])
        for p, *of_clients in zip(net.parameters(), *ends, strict=True):
            p.data.copy_(torch.stack(of_clients).mean(0))
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]), sum(losses) / len(losses)


def sgd(**options):
    return lambda module: [torch.optim.SGD(module.parameters(), lr=0.1, **options)]


CASES = {
    "plain": ([], sgd(), {}),
    "clip": (["local.clip_norm=0.2"], sgd(), {"clip_norm": 0.2}),
    "unequal": (["local.accumulate=3"], sgd(), {"steps": [[0, 1, 2], [3, 4, 5]]}),  # four, four and two samples
    "autograd": (["runtime.step=autograd", "runtime.vectorize=always"], sgd(), {}),
    "momentum": (["local.momentum=0.9", "local.weight_decay=0.1"], sgd(momentum=0.9, weight_decay=0.1), {}),
    "schedule": (["local.lr_schedule={name: step_exponential, decay: 0.5}"], sgd(), {"decay": 0.5}),
    "module": (
        ["local.optimizer=module"],
        lambda module: [x for part in module.configure_optimizers() for x in part],
        {},
    ),
    "adamw": (
        ["local.optimizer=adamw", "local.weight_decay=0.1"],
        lambda module: [torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1)],
        {},
    ),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The initial model, which no option of local work changes."""
    return raylfl.run(CONFIG, [f"logging.dir={tmp_path_factory.mktemp('start')}", "rounds=0"]).module


@pytest.mark.parametrize("case", one_in(2, CASES))
def test_a_step_takes_the_mean_gradient_of_its_batches(start, case):
    overrides, make_optimizer, options = CASES[case]
    result = rounds_of(CONFIG, overrides)
    params, loss = loop(copy.deepcopy(start), make_optimizer, **options)
    torch.testing.assert_close(result.params, params, rtol=1e-10, atol=1e-12)
    last = result.metrics[-1]
    assert last["train/loss"] == pytest.approx(loss, rel=1e-10)
    assert last["train/number"] == 2.5  # each of the batches 0..5 once
    assert last["cost/local_steps"] == 2 * 6 * len(options.get("steps", STEPS))
    assert last["cost/gradients"] == 2 * 6 * 20  # two passes over ten samples


MEAN = {"class_path": "tests.runtime.tiny.Net", "init_args": {"norm": False, "dropout": 0.0}}  # over samples
TWINS = {**CONFIG, "model": MEAN}
TWINS |= {"participation": {"name": "uniform", "size": 4}, "link": {"name": "bernoulli", "q": 0.3}}


def test_parts_of_a_step_have_the_run_of_batches_as_large_as_all_of_them():
    """Also where a method asks for the gradient of all samples; ten samples are four, four and two."""
    parts, large = (
        rounds_of(
            TWINS, ["algorithm={name: scaffold, option: 1}", f"local.batch_size={4 // k}", f"local.accumulate={k}"]
        )
        for k in (2, 1)
    )
    torch.testing.assert_close(parts.params, large.params, rtol=1e-9, atol=1e-11)


DRAWN = ["local.sampling=with_replacement", "local.epochs=null", "local.steps=3", "runtime.vectorize=always"]


def test_samples_drawn_with_replacement_fill_every_step_and_clients_take_theirs_alone(runs):
    result = raylfl.run(TWINS, [*runs, *DRAWN])
    assert result.metrics[-1]["cost/gradients"] == 2 * 4 * 3 * 8  # rounds, clients, steps, samples
    said = (result.run_dir / "log.txt").read_text()
    assert "local.accumulate takes the batches of one client after the other" in said


def test_hooks_of_single_batches_are_refused(runs):
    config = {**CONFIG, "model": {"class_path": "tests.runtime.test_accumulate.Hooked"}}
    with pytest.raises(BadConfig, match=r"local\.accumulate=2, but must be 1: Hooked has on_train_batch_end"):
        raylfl.run(config, runs)
