"""The local optimizers against torch.optim, in one go and over rounds that hand their state on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.algorithm import Work
from raylfl.core.local import run_local
from raylfl.core.local_optimizer import SGD, AdamW
from raylfl.core.local_rule import LocalRule
from raylfl.core.oracle import Batch
from raylfl.testing import FunctionOracle
from tests.core.test_local import D, problem

PAIRS = {
    "momentum": (SGD(0.9), lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
    "adamw": (
        AdamW(0.8, 0.95, 1e-6, 0.1),
        lambda p, lr: torch.optim.AdamW(p, lr=lr, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    ),
}


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(list(PAIRS)),
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5),
)
def test_two_rounds_that_keep_their_moments_are_one_run_of_torchs_optimizer(name, seed, counts):
    """K_i differ between clients and rounds; each client continues from the end of its first round."""
    (ours, theirs), gradient, lr = PAIRS[name], problem(seed), 0.05
    start, moments = torch.ones(len(counts), D, dtype=torch.float64), None
    for r in range(2):
        steps = np.array([pair[r] for pair in counts], dtype=float)
        done = run_local(
            FedAvg(),
            FunctionOracle(gradient, D),
            lambda t, rows, r=r: [Batch((k, 0, t + (counts[k][0] if r else 0)), 1) for k in rows],
            lambda t, row: 0,
            {"x": start},
            {},
            Work(steps, steps, np.ones(len(steps)), lr),
            LocalRule(lr),
            optimizer=ours,
            moments=moments,
        )
        start, moments = start - done.uploads["update"], done.moments
    for client, pair in enumerate(counts):
        x = torch.nn.Parameter(torch.ones(D, dtype=torch.float64))
        optimizer = theirs([x], lr)
        for t in range(sum(pair)):
            x.grad = gradient(client, x.detach(), 0, t)
            optimizer.step()
        torch.testing.assert_close(start[client], x.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", PAIRS)
def test_in_float32_a_step_is_torchs_up_to_rounding(name):
    """The first steps of adamw divide by 1 - b2^n = 0.001..., which float32 has no digits for."""
    ours, theirs = PAIRS[name][0] if name == "momentum" else AdamW(), None
    generator = torch.Generator().manual_seed(0)
    x, state = torch.randn(1, 1000, generator=generator), torch.zeros(1, ours.width(1000))
    p = torch.nn.Parameter(x[0].clone())
    theirs = PAIRS[name][1]([p], 0.01) if name == "momentum" else torch.optim.AdamW([p], lr=0.01, weight_decay=0.0)
    for _ in range(5):
        p.grad = torch.randn(1000, generator=generator)
        ours.step(x, p.grad[None].clone(), state, 0.01)
        theirs.step()
        torch.testing.assert_close(x[0], p.detach(), rtol=1e-6, atol=1e-7)
