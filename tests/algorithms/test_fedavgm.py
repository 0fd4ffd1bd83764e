"""FedAvgM: its server step is that of torch's SGD on the mean update, with either kind of momentum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms.adaptive import FedAvgM
from raylfl.core.population import Population
from raylfl.testing import recorded_round


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_server_is_sgd_with_momentum_on_the_mean_update(seed, nesterov):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=7))
    population = Population.of(np.ones(5), "uniform")
    algorithm = FedAvgM(gamma=0.7, beta=0.9, nesterov=nesterov)
    server = algorithm.init_server(x, population)
    want = torch.nn.Parameter(x.clone())
    optimizer = torch.optim.SGD([want], lr=0.7, momentum=0.9, nesterov=nesterov)
    for k in range(6):
        received = np.sort(rng.choice(5, size=rng.integers(1, 6), replace=False))
        updates = torch.from_numpy(rng.normal(size=(len(received), 7)))
        server, _ = algorithm.server_step(
            server, {"update": updates}, recorded_round(k, received, population).received_view
        )
        want.grad = updates.mean(0)
        optimizer.step()
        torch.testing.assert_close(server["x"], want.detach(), rtol=1e-12, atol=1e-13)
