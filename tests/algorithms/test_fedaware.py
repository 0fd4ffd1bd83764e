"""FedAWARE: its invariants, its warm-ups and the two conventions of alpha."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms import fedaware
from raylfl.algorithms.fedaware import FedAWARE
from raylfl.core.population import Population
from raylfl.testing import recorded_round
from tests.algorithms.replay import setting, states


@pytest.mark.parametrize("seed", range(3))
def test_lengths_and_products_are_those_of_the_momenta_after_every_round(seed):
    for server in states(FedAWARE(alpha=0.7), *setting(seed)):
        matrix = server["momenta"].matrix
        torch.testing.assert_close(server["lengths"], matrix.norm(dim=1), rtol=1e-14, atol=0)
        members = matrix[server["members"]]
        torch.testing.assert_close(server["gram"], members @ members.T, rtol=1e-12, atol=1e-13)


def play(algorithm: FedAWARE, rounds: list[dict[int, list[float]]], clients: int = 2, dtype=torch.float64):
    """(server, info) after rounds of received updates, each {client: U_i}."""
    population = Population.of(np.ones(clients))
    server, info = algorithm.init_server(torch.zeros(2, dtype=dtype), population), {}
    for k, updates in enumerate(rounds):
        r = recorded_round(k, list(updates), population).received_view
        server, info = algorithm.server_step(server, {"update": torch.tensor(list(updates.values()), dtype=dtype)}, r)
    return server, info


def test_two_orthogonal_momenta_weigh_as_their_inverse_squares():
    """|m| = (1, 2): lambda = (4/5, 1/5), x = -(0.8, 0.4); chi2 = (4/5 / 1/2)^2 + (1/5 / 1/2)^2."""
    server, info = play(FedAWARE(), [{0: [1.0, 0.0], 1: [0.0, 2.0]}])
    np.testing.assert_allclose(server["x"], [-0.8, -0.4], rtol=1e-12)
    chi2 = pytest.approx(1.6**2 + 0.4**2, rel=1e-12)
    assert info == {"active": 2.0, "support": 2.0, "gap": pytest.approx(0.0, abs=1e-12), "chi2": chi2}


def test_chi2_has_the_weights_of_the_clients_received_so_far():
    """Client 2 of four comes first and alone: lambda = 1 on a weight of 1/4; then lambda = (1/5, 4/5) for 0 and 2."""
    _, info = play(FedAWARE(), [{2: [1.0, 0.0]}], clients=4)
    assert info["chi2"] == 16.0
    _, info = play(FedAWARE(), [{2: [1.0, 0.0]}, {0: [0.0, 2.0]}], clients=4)
    assert info["chi2"] == pytest.approx(16 * (0.8**2 + 0.2**2), rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [(torch.float32, None, 1e-6), (torch.float64, None, 1e-12), (torch.float32, 1e-3, 1e-3), (torch.float64, 0.1, 0.1)],
)
def test_the_gap_to_stop_at_is_that_of_the_precision_unless_given(monkeypatch, dtype, given, expected):
    asked = []

    def solver(matrix, lengths, known, changed, tol, normalize):
        asked.append(tol)
        return solve(matrix, lengths, known, changed, tol, normalize)

    solve = fedaware.min_norm_working_set
    monkeypatch.setattr(fedaware, "min_norm_working_set", solver)
    algorithm, population = FedAWARE(tol=given), Population.of(np.ones(2))
    r = recorded_round(0, [0, 1], population).received_view
    server = algorithm.init_server(torch.zeros(2, dtype=dtype), population)
    algorithm.server_step(server, {"update": torch.eye(2, dtype=dtype)}, r)
    assert asked == [expected]


def test_the_first_momentum_is_the_update_to_the_last_bit():
    server, _ = play(FedAWARE(alpha=0.3), [{0: [0.1, 1 / 3]}], dtype=torch.float32)
    assert torch.equal(server["momenta"].matrix, torch.tensor([[0.1, 1 / 3]]))


def test_warmup_all_samples_all_clients_in_round_0_only():
    assert [FedAWARE(warmup="all").full_participation({}, r) for r in (0, 1)] == [True, False]
    assert not FedAWARE().full_participation({}, 0)


def test_a_momentum_of_zero_is_left_out_and_all_zero_momenta_leave_the_model_alone():
    server, info = play(FedAWARE(), [{0: [0.0, 0.0], 1: [0.0, 2.0]}])
    np.testing.assert_array_equal(server["x"], [0.0, -2.0])
    assert (info["active"], info["support"]) == (2.0, 1.0)
    server, info = play(FedAWARE(), [{0: [0.0, 0.0], 1: [0.0, 0.0]}])
    np.testing.assert_array_equal(server["x"], [0.0, 0.0])
    assert info["support"] == 0.0


def test_opposite_momenta_cancel_to_the_precision_of_the_run():
    server, _ = play(FedAWARE(), [{0: [0.3, 0.4], 1: [-0.6, -0.8]}])
    assert float(server["x"].norm()) < 1e-15
    server, _ = play(FedAWARE(), [{0: [0.3, 0.4], 1: [-0.6, -0.8]}], dtype=torch.float32)
    assert float(server["x"].norm()) < 1e-6
