"""Float32 updates with squares outside of float32: directions and probabilities do not depend on the scale.

All weights below are ratios of inner products, so that a common factor of all updates cancels.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedaware import FedAWARE
from raylfl.algorithms.fedmgda import FedMGDA
from raylfl.algorithms.optimal_sampling import OptimalSampling
from raylfl.core.population import Population
from raylfl.testing import recorded_round
from tests.algorithms.replay import beforehand

COUNT, D = 4, 6
UPDATES = torch.randn(COUNT, D, generator=torch.Generator().manual_seed(0)) + 0.5
POPULATION = Population.of(np.ones(COUNT))
SCALES = [2.0**-90, 2.0**90]


def after(algorithm, scale):
    """The server state after a round of these updates, from x = 0."""
    r = recorded_round(0, np.arange(COUNT), POPULATION).received_view
    return algorithm.server_step(algorithm.init_server(torch.zeros(D), POPULATION), {"update": UPDATES * scale}, r)[0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("normalize", [False, True])
def test_fedaware_scales_with_its_updates_or_their_directions(normalize, scale):
    ours, theirs = (after(FedAWARE(normalize=normalize), factor)["x"] for factor in (scale, 1.0))
    assert theirs.norm() > 0
    torch.testing.assert_close(ours / (1.0 if normalize else scale), theirs, rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", SCALES)
def test_fedmgda_does_not_change(scale):
    torch.testing.assert_close(after(FedMGDA(), scale)["x"], after(FedMGDA(), 1.0)["x"], rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", SCALES)
def test_optimal_sampling_has_the_same_probabilities(scale):
    algorithm = OptimalSampling(norms="stale")
    c = beforehand(POPULATION.weights, np.zeros(COUNT), np.ones(COUNT))
    p = algorithm.probabilities(after(algorithm, scale), c)
    np.testing.assert_allclose(p, UPDATES.norm(dim=1) / UPDATES.norm(dim=1).sum(), rtol=1e-5)
