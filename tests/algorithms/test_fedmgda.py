"""FedMGDA+: the direction's defining property, and its two ends in eps."""

from __future__ import annotations

import numpy as np
import torch

from raylfl.algorithms.fedmgda import FedMGDA
from raylfl.core.population import Population
from raylfl.testing import recorded_round


def step(updates: np.ndarray, sizes: np.ndarray | None = None, **options) -> tuple[np.ndarray, dict]:
    """(x_0 - x_1, info) with gamma = 1, all uploads received."""
    population = Population.of(np.ones(len(updates)) if sizes is None else sizes, "data_size")
    r = recorded_round(0, np.arange(len(updates)), population).received_view
    server = {"x": torch.zeros(updates.shape[1], dtype=torch.float64)}
    after, info = FedMGDA(**options).server_step(server, {"update": torch.from_numpy(updates)}, r)
    return -after["x"].numpy(), info


def test_the_step_is_a_common_descent_direction_of_length_at_most_one():
    """MGDA: u_i . v >= |v|^2 for every client, so that no f_i increases to first order."""
    updates = np.random.default_rng(0).normal(size=(6, 20)) * np.array([1, 10, 0.1, 1, 1, 5])[:, None]
    v, info = step(updates)
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    assert (unit @ v >= v @ v * (1 - 1e-9)).all()
    assert info["support"] > 1
    assert np.linalg.norm(v) <= 1


def test_a_client_that_did_not_move_is_left_out_of_lambda_and_lambda0():
    updates = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
    v, info = step(updates, np.array([1, 5, 3]), eps=0.0)
    np.testing.assert_allclose(v, [0.25 * 0.6, 0.25 * 0.8 + 0.75], rtol=1e-12)
    assert info["support"] == 2.0


def test_if_no_client_moved_the_model_stays():
    v, info = step(np.zeros((3, 2)))
    np.testing.assert_array_equal(v, [0.0, 0.0])
    assert info["support"] == 0.0
