"""Users' networks that share layers and weights, or make layers late: runs have autograd's gradients in all forms.

Truth is a plain loop of torch: one client, whole batches, three steps of SGD.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

import raylfl
from tests.runtime.plain import fedavg


class Points:
    """Twelve random inputs of four classes, all at one client."""

    def __init__(self, shape):
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(12, *shape, generator=generator), torch.arange(12) % 4
        self.client_indices = [np.arange(12)]

    def train_dataset(self):
        return TensorDataset(self.x, self.y)


class Shared(LightningModule):
    """A network with a layer that is used twice under two names, and two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.again = self.first
        self.down, self.up = nn.Linear(5, 4), nn.Linear(4, 5)
        self.up.weight = nn.Parameter(self.down.weight.T.detach().clone())
        self.last = nn.Linear(5, 4)
        self.last.weight = self.down.weight

    def training_step(self, batch, batch_idx):
        x = torch.tanh(self.again(torch.tanh(self.first(batch[0]))))
        return nn.functional.cross_entropy(self.last(self.up(torch.tanh(self.down(x)))), batch[1])


def plain(make, shape, start):
    """The parameters after three steps of SGD at 0.1 from `start` [d]."""
    data = Points(shape)
    return fedavg(lambda: make().to(start.dtype), start, [(data.x.to(start.dtype), data.y)], rounds=1)


def config_of(model, shape, **runtime):
    return {
        "rounds": 1,
        "dtype": "float64",
        "data": {"class_path": "tests.runtime.test_networks.Points", "init_args": {"shape": list(shape)}},
        "model": model,
        "partition": {"name": "natural"},
        "local": {"steps": 3, "batch_size": "full", "lr": 0.1},
        "runtime": {"backend": "local", **runtime},
    }


@pytest.mark.parametrize("vectorize", ["never", "always"])
def test_layers_and_weights_that_are_shared_get_the_gradients_of_all_their_uses(runs, vectorize):
    config = config_of({"class_path": "tests.runtime.test_networks.Shared"}, [5], vectorize=vectorize)
    start = raylfl.run(config, [*runs, "rounds=0"]).params
    expected = plain(Shared, [5], start)
    torch.testing.assert_close(raylfl.run(config, runs).params, expected, rtol=1e-10, atol=1e-11)


class BuiltLate(LightningModule):
    """A network that creates its layers in Lightning's hook `setup` or `configure_model`, as large models do."""

    def __init__(self, hook):
        super().__init__()
        self.hook = hook

    def setup(self, stage):
        if self.hook == "setup":
            assert stage == "fit"
            self.layer = nn.Linear(5, 4)

    def configure_model(self):
        if self.hook == "configure_model":
            self.layer = nn.Linear(5, 4)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])


def built(hook):
    module = BuiltLate(hook)
    module.setup("fit")
    module.configure_model()
    return module


@pytest.mark.parametrize("hook", ["setup", "configure_model"])
def test_layers_that_a_module_makes_in_lightnings_hooks_are_trained(runs, hook):
    model = {"class_path": "tests.runtime.test_networks.BuiltLate", "init_args": {"hook": hook}}
    config = config_of(model, [5], vectorize="never")
    start = raylfl.run(config, [*runs, "rounds=0"]).params
    expected = plain(lambda: built(hook), [5], start)
    torch.testing.assert_close(raylfl.run(config, runs).params, expected, rtol=1e-10, atol=1e-11)
