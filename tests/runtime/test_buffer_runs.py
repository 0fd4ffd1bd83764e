"""Buffers in whole runs, against plain loops in PyTorch that use nothing of the package."""

import copy
import json
from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

import raylfl
from raylfl.errors import NonFinite
from raylfl.runtime.session import rows_in_process
from raylfl.testing.runs import RandomWorkers, carry_out
from tests.runtime.tiny import OWNED, TINY, Points
from tests.shares import one_in

on_random_workers = partial(rows_in_process, make=RandomWorkers)
FULL = {**OWNED, "rounds": 3, "local": {"steps": 4, "batch_size": "full", "lr": 0.1}}


class Everything(LightningModule):
    """A small network with buffers of every dtype that its steps use, and some that they change."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.mean, self.usual = nn.BatchNorm1d(6, momentum=None), nn.BatchNorm1d(6)
        self.register_buffer("freqs", torch.polar(torch.ones(3), torch.tensor([0.7, 1.3, 0.2])))  # Llama's rotary form
        self.register_buffer("prime", torch.tensor([16777259, 2147483647]))
        self.register_buffer("some", torch.tensor([True, False, True]))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("moving", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def training_step(self, batch, batch_idx):
        x, y = batch
        h = self.usual(self.mean(self.first(x)))
        turned = torch.view_as_real(torch.view_as_complex(h.reshape(-1, 3, 2)) * self.freqs).flatten(1)
        z = self.last(turned) * torch.where(self.some, 1.0, 0.5)
        z = (z[:, None] + self.mask).softmax(2).mean(1) + z + (self.prime % 2).sum()
        self.steps += 1
        self.moving.lerp_(z.detach().mean(0), 0.1)
        self.scratch += self.moving
        return nn.functional.cross_entropy(z, y) * (1 + 0.1 * self.steps) + 1e-3 * (z * self.scratch).sum()

    def test_step(self, batch, batch_idx):
        self.log("moving", self.moving.sum())
        self.log("steps", self.steps.float())


def start() -> Everything:
    return raylfl.run({**FULL, "rounds": 0}, ["logging.report=false"], model=Everything).module


def plain(module: Everything, rounds: int, sent, per_client=()) -> Everything:
    """FedAvg in PyTorch: parameters and the buffers `sent` are averaged, `per_client` stay with their client."""
    kept, first = [{} for _ in range(6)], copy.deepcopy(module.state_dict())
    whole, x, y = copy.deepcopy(module), Points().x.chunk(6), Points().targets.chunk(6)
    for _ in range(rounds):
        states = []
        for i in range(6):
            client = copy.deepcopy(whole).train()
            client.load_state_dict({**client.state_dict(), **kept[i]})
            for _ in range(4):
                grads = torch.autograd.grad(client.training_step((x[i], y[i]), 0), list(client.parameters()))
                with torch.no_grad():
                    for p, g in zip(client.parameters(), grads, strict=True):
                        p -= 0.1 * g
            states.append(client.state_dict())
            kept[i] = {name: client.state_dict()[name] for name in per_client}
        averaged = [*dict(module.named_parameters()), *sent]
        means = {name: torch.stack([s[name].double() for s in states]).mean(0) for name in averaged}
        whole.load_state_dict({**first, **{k: v.to(first[k].dtype) for k, v in means.items()}})
    return whole


DEFAULT = [
    *("mean.running_mean", "mean.running_var", "mean.num_batches_tracked"),
    *("usual.running_mean", "usual.running_var", "moving", "mask"),
]


@pytest.mark.parametrize(
    ("asked", "runtime"),
    one_in(
        4,
        [
            (asked, runtime)
            for asked in (None, "usual.num_batches_tracked", "steps")
            for runtime in (["vectorize=never", "step=autograd"], ["vectorize=never"], ["vectorize=always"])
        ],
    ),
)
def test_a_run_with_buffers_of_every_kind_is_the_plain_loop(tmp_path, runtime, asked):
    torch.manual_seed(0)
    module, sent = start(), DEFAULT if asked is None else [*DEFAULT, asked]
    model = [] if asked is None else [f"model.buffers=[{', '.join(sent)}]"]
    overrides = [f"logging.dir={tmp_path}", *(f"runtime.{key}" for key in runtime), *model]
    result = raylfl.run(FULL, overrides, model=Everything)
    expected = plain(module, 3, sent)
    found, right = result.module.state_dict(), expected.state_dict()
    assert found.keys() == right.keys()
    for name, value in right.items():
        assert found[name].dtype == value.dtype, name
        torch.testing.assert_close(found[name], value, rtol=2e-4, atol=2e-5, msg=lambda text, name=name: name + text)
    assert found["mean.num_batches_tracked"] == 12  # weights the mean of all steps, so it travels
    assert torch.equal(found["prime"], torch.tensor([16777259, 2147483647]))
    row = result.metrics[-1]
    assert row["test/steps"] == (12 if asked == "steps" else 0)
    floats = sum(right[name].numel() for name in sent)
    assert row["cost/uplink_floats"] == 3 * 6 * (len(result.params) + floats)


@pytest.mark.parametrize("runtime", ["vectorize=never", "vectorize=always"])
def test_clients_that_keep_their_buffers_keep_all_that_a_state_dict_holds(tmp_path, runtime):
    torch.manual_seed(0)
    own = [name for name, _ in start().named_buffers() if name != "scratch"]
    result = raylfl.run(
        FULL, [f"logging.dir={tmp_path}", f"runtime.{runtime}", "local.buffers=local"], model=Everything
    )
    expected = plain(start(), 3, (), own)
    right = torch.cat([p.detach().reshape(-1) for p in expected.parameters()])
    torch.testing.assert_close(result.params, right, rtol=2e-4, atol=2e-5)
    assert result.metrics[-1]["cost/uplink_floats"] == 3 * 6 * len(result.params)


def test_a_buffer_that_changes_and_does_not_travel_is_named_at_the_start(tmp_path):
    result = raylfl.run(FULL, [f"logging.dir={tmp_path}", "rounds=0"], model=Everything)
    lines = [line for line in (result.run_dir / "log.txt").read_text().splitlines() if "does not travel" in line]
    names = [line.split("buffer ")[1].split()[0] for line in lines]
    assert names == ["steps", "scratch"]  # BatchNorm's counter is idle
    assert "model.buffers names the buffers that travel" in lines[0]


class Counts(LightningModule):
    """A module whose loss depends on how many steps its buffers and its attribute have seen."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("whole", torch.tensor(0))
        self.calls = 0

    def training_step(self, batch, batch_idx):
        self.n += 1
        self.whole += 1
        self.calls += 1
        return nn.functional.cross_entropy(self.body(batch[0]), batch[1]) / (self.n + self.whole + self.calls)


def test_full_gradients_of_clients_do_not_depend_on_the_clients_before(tmp_path):
    """The module as it is at the start, for each client and on any worker."""
    overrides = ["eval.diversity=true", "eval.every=1", "rounds=1", "eval.batch_size=100"]
    config = {**FULL, "model": {"class_path": "tests.runtime.test_buffer_runs.Counts"}}
    carry_out(config, tmp_path, overrides, rows=on_random_workers)
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    gradients = []
    for x, y in zip(Points().x.chunk(6), Points().targets.chunk(6), strict=True):
        module = raylfl.load(tmp_path).module
        module.n.zero_()
        loss = nn.functional.cross_entropy(module.body(x), y) / 3
        gradients.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]))
    g = torch.stack(gradients).double()
    expected = float(g.square().sum(1).mean().sqrt() / g.mean(0).norm())
    assert row["global/diversity"] == pytest.approx(expected, rel=1e-5)


class Lost(LightningModule):
    """A module in whose steps an entry of something becomes infinite or NaN."""

    def __init__(self, what: str = "buffer"):
        super().__init__()
        self.what, self.body = what, nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.body[1].register_buffer("level", torch.zeros(3))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, torch.nan, torch.inf]))
        self.register_buffer("limit", torch.tensor([torch.inf]))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.body(batch[0]), batch[1])
        self.limit.copy_(batch[0].min().minimum(self.limit))
        if self.what == "buffer":
            self.body[1].level[1] = torch.inf
        if self.what == "mask":
            self.mask.neg_()
        return loss + (torch.nan * self.body[1].bias[2] if self.what == "parameter" else 0.0)


NAMES = {"buffer": "buffer body.1.level", "mask": "buffer mask", "parameter": "parameter body.1.bias"}


@pytest.mark.parametrize(
    ("what", "algorithm"),
    [
        *zip(NAMES, ["fedavg", "sfl", "dsgd"], strict=True),
        ("nothing", "fedavg"),
    ],
)
def test_what_is_not_finite_is_named_and_constant_entries_may_be_infinite(tmp_path, what, algorithm):
    overrides = [f"logging.dir={tmp_path}", f"algorithm={algorithm}", "model.init_args={what: " + what + "}"]
    overrides.append("local.steps=1")
    model = {**FULL, "rounds": 2, "model": {"class_path": "tests.runtime.test_buffer_runs.Lost"}}
    if what == "nothing":
        result = raylfl.run(model, overrides)
        assert result.module.limit.isfinite().all()
        assert torch.equal(result.module.mask, torch.tensor([0.0, -torch.inf, torch.nan, torch.inf])) or (
            np.isnan(result.module.mask[2]) and result.module.mask[[0, 1, 3]].tolist() == [0.0, -np.inf, np.inf]
        )
        return
    with pytest.raises(NonFinite, match=rf"client \d sent a non-finite update in round 0; .*not finite: {NAMES[what]}"):
        raylfl.run(model, overrides)


def test_rounding_errors_before_batch_normalisation_end_no_run(tmp_path):
    """The gradient of a bias before batch normalisation is 0 but for rounding errors, which differ under vmap.

    With two samples, autograd's is exactly 0, and vmap's 2e-5 of the largest entry of all gradients.
    """
    config = {**TINY, "algorithm": {"name": "focus"}, "seed": 1, "rounds": 4}
    assert raylfl.run(config, [f"logging.dir={tmp_path}"]).params.isfinite().all()
