"""Recorded ReLUs and max-pools that swap places: the bits of all calls."""

import pytest
from torch import nn
from torch.nn import functional as F

from tests.core.test_recorded import check_bits
from tests.core.user_modules import CLASSES, Net


class Rewritten(Net):
    """A ReLU and a max-pool, beside other uses of the values between them, by name."""

    name, shape = "", (3, 6, 6)

    def build(self):
        self.inner, self.out = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(54, CLASSES)

    def forward(self, x):
        h = self.inner(x)
        gate = h.relu_() if self.name == "in place" else h.relu()
        small, places = F.max_pool2d(gate, 2, return_indices=True)
        if self.name == "indices":
            small = small + places * 0.01
        if self.name == "activation":
            small = small + gate.mean()
        if self.name == "view":
            small = small + gate.view(len(x), 6, 4, 9)[:, :, 0, :].view(len(x), 6, 3, 3)
        return self.out(small.flatten(1))


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("swapped", "max_pool2d_with_indices relu_", "relu"),
        ("in place", "max_pool2d_with_indices relu_", ""),
        ("indices", "relu max_pool2d_with_indices", "relu_"),
        ("activation", "relu max_pool2d_with_indices", "relu_"),
        ("view", "relu max_pool2d_with_indices", "relu_"),
    ],
)
def test_rewritten_calls_have_autograds_bits_and_calls_needed_elsewhere_stay(name, has, lacks):
    recorded, replayed = check_bits(type(name, (Rewritten,), {"name": name}), steps=12)
    assert recorded.refusal is None
    assert replayed
    program = next(iter(recorded.kinds.values())).program
    operators = [call.op._schema.name.split("::")[1] for call in program.calls]
    places = [operators.index(op) for op in has.split()]
    assert places == sorted(places)
    assert lacks not in operators
