"""Norms, diversity and distances against their formulas."""

import numpy as np
import pytest
import torch

from raylfl.core.reduce import BLOCK, square_norms, weighted_sum
from raylfl.diagnostics.updates import consensus_error, distance_metrics, drift, update_metrics


def measured(updates, weights):
    return update_metrics(weighted_sum(updates, weights / weights.sum()), square_norms(updates), weights)


@pytest.mark.parametrize("width", [1, 7, BLOCK + 3])
def test_norm_and_diversity_follow_equation_3_with_normalised_weights(width):
    rng = np.random.default_rng(width)
    updates, weights = rng.normal(size=(4, width)), np.array([0.5, 1.0, 0.25, 2.25])
    w = weights / 4
    norm = np.linalg.norm(w @ updates)
    want = {"update/norm": norm, "update/diversity": np.sqrt(w @ (updates**2).sum(1)) / norm}
    assert measured(torch.from_numpy(updates), weights) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("width", [1, 7, 2 * BLOCK + 3])
def test_drift_and_consensus_are_weighted_squares_of_distances(width):
    """Distances are to the model from which all clients started, and to the weighted mean."""
    rng = np.random.default_rng(width)
    updates, weights = rng.normal(size=(4, width)), np.array([0.5, 1.0, 0.25, 2.25])
    w = weights / 4
    rows = torch.from_numpy(updates)
    assert drift(rows, weights) == pytest.approx(w @ (updates**2).sum(1), rel=1e-12)
    assert consensus_error(rows, weights) == pytest.approx(w @ ((updates - w @ updates) ** 2).sum(1), rel=1e-12)


def test_diversity_of_updates_that_cancel_and_distances_from_zero():
    row = torch.tensor([3.0, -4.0])
    assert measured(torch.stack([row, -row]), np.ones(2)) == {"update/norm": 0.0}
    assert measured(torch.stack([row, row]), np.ones(2)) == {"update/norm": 5.0, "update/diversity": 1.0}
    x = torch.tensor([3.0, 4.0])
    assert distance_metrics(x, torch.tensor([3.0, 0.0])) == {"global/distance": 4 / 3, "global/distance_abs": 4.0}
    assert distance_metrics(x, torch.zeros(2)) == {"global/distance": 5.0, "global/distance_abs": 5.0}
