"""ReLU and max-pool in the other order: autograd's bits, for any pool windows and memory order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.core.test_recorded import check_bits
from tests.core.user_modules import CLASSES, Net


class Pooled(Net):
    """A network with a ReLU before three pools: 2 x 2; overlapping windows with padding; one ReLU used twice."""

    shape = (3, 12, 12)
    inplace = False

    def build(self):
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 2), nn.Conv2d(8, 8, 2)
        self.out = nn.Linear(40, CLASSES)

    def relu(self, x):
        return F.relu(x, inplace=self.inplace)

    def forward(self, x):
        x = F.max_pool2d(self.relu(self.conv1(x)), 2)
        x = F.max_pool2d(self.relu(self.conv2(x)), 3, stride=1, padding=1)
        x = self.relu(self.conv3(x))
        return self.out(torch.cat([F.max_pool2d(x, 2, ceil_mode=True).flatten(1), x.mean((2, 3))], 1))


class InPlace(Pooled):
    inplace = True


class Below(Pooled):
    """A network for which all entries of an image are equal and negative."""

    def batch(self, size):
        return torch.full((size, *self.shape), -1.0), torch.randint(0, CLASSES, (size,))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", [Pooled, InPlace, Below])
def test_pools_go_before_activations_with_the_bits_of_autograd(kind, channels_last):
    recorded, replayed = check_bits(kind, channels_last=channels_last)
    assert recorded.refusal is None
    assert replayed
    forward = {"relu": "relu", "relu_": "relu", "max_pool2d_with_indices": "pool"}
    operators = [row["operator"] for row in next(iter(recorded.kinds.values())).program.table()]
    order = [forward[name] for name in operators if name in forward]
    assert order == ["pool", "relu", "pool", "relu", "relu", "pool"]
