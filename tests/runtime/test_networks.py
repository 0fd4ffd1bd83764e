"""Users' networks of plain layers: runs have autograd's gradients in all faster forms.

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
from raylfl.errors import BadConfig
from tests.runtime.plain import fedavg
from tests.shares import one_in

NETWORKS = {
    "a pool that keeps a part of a window": (
        (1, 9, 9),
        lambda: [nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(25, 4)],
    ),
    "a dilated convolution": (
        (1, 9, 9),
        lambda: [nn.Conv2d(1, 3, 3, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(75, 4)],
    ),
    "a strided convolution": (
        (1, 9, 9),
        lambda: [nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)],
    ),
    "a grouped convolution": ((2, 7, 7), lambda: [nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(100, 4)]),
    "a circular convolution": (
        (1, 7, 7),
        lambda: [nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(98, 4)],
    ),
    "no biases": (
        (1, 7, 7),
        lambda: [nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(50, 4, bias=False)],
    ),
    "a padded pool": (
        (1, 8, 8),
        lambda: [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(32, 4)],
    ),
    "a dilated pool": (
        (1, 8, 8),
        lambda: [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, 1, dilation=2), nn.Flatten(), nn.Linear(32, 4)],
    ),
    "a pool whose windows overlap": (
        (1, 8, 8),
        lambda: [nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(32, 4)],
    ),
    "two rows kept by Flatten": (
        (3, 5),
        lambda: [nn.Flatten(start_dim=1), nn.Linear(15, 6), nn.ReLU(), nn.Linear(6, 4)],
    ),
}


class Points:
    """Twelve random inputs of four classes, all at one client."""

    def __init__(self, shape):
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(12, *shape, generator=generator), torch.arange(12) % 4
        self.client_indices = [np.arange(12)]

    def train_dataset(self):
        return TensorDataset(self.x, self.y)


class Net(LightningModule):
    """A network of plain layers."""

    def __init__(self, name):
        super().__init__()
        self.network = nn.Sequential(*NETWORKS[name][1]())

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])


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


WAYS = {
    "float32": ({"vectorize": "never"}, ["dtype=float32"], 1e-4),
    "samples last": ({"vectorize": "never", "layout": "batch_last"}, [], 1e-10),
    "vectorised": ({"vectorize": "always"}, [], 1e-10),
}


@pytest.mark.parametrize(("name", "way"), one_in(2, [(name, way) for name in NETWORKS for way in WAYS]))
def test_a_run_takes_the_steps_of_a_plain_loop(runs, name, way):
    shape = NETWORKS[name][0]
    runtime, overrides, tolerance = WAYS[way]
    model = {"class_path": "tests.runtime.test_networks.Net", "init_args": {"name": name}}
    config = config_of(model, shape, **runtime)
    try:
        result = raylfl.run(config, [*runs, *overrides])
    except BadConfig as refusal:
        assert "runtime.layout=batch_last, but Net here does not take steps that can be translated" in str(refusal)
        return
    start = raylfl.run(config, [*runs, *overrides, "rounds=0"]).params
    expected = plain(lambda: Net(name), shape, start)
    assert not torch.allclose(expected, start, atol=1e-3)
    torch.testing.assert_close(result.params, expected, rtol=tolerance, atol=tolerance / 10)


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
