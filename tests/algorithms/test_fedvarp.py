"""FedVARP in both forms, against the oracle and its invariants."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.fedvarp import FedVARP
from raylfl.core.population import Population
from raylfl.errors import BadValue
from raylfl.testing import recorded_round
from tests.algorithms.replay import assert_follows, models, setting, states


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lost", ["ignore", "reuse"])
def test_fedvarp_follows_its_equations(lost, seed):
    replace = lost == "reuse"
    assert_follows(FedVARP(gamma=0.8, lost=lost), "fedvarp", seed, with_replacement=replace, gamma=0.8, lost=lost)


def test_the_mean_is_that_of_the_memory_over_all_clients_after_every_round():
    for server in states(FedVARP(), *setting(1)):
        torch.testing.assert_close(server["mean"], server["memory"].matrix.sum(dim=0) / 6, rtol=1e-12, atol=1e-14)


def test_full_participation_is_fedavg():
    """The memories cancel: (1/N) sum (U_i - B_i) + (1/N) sum B_j."""
    case = setting(2, size=6, lossy=False, include_empty=False)
    np.testing.assert_allclose(models(FedVARP(), *case), models(FedAvg(), *case), rtol=1e-12)


def test_without_losses_reuse_is_fedavg_with_rule_anonymous():
    case = setting(3, lossy=False, with_replacement=True)
    theirs = models(FedAvg(aggregate="anonymous"), *case)
    np.testing.assert_array_equal(models(FedVARP(lost="reuse"), *case), theirs)


def test_a_lost_upload_is_replaced_by_the_last_one_received_and_stays_in_memory():
    """Two rounds of both clients, U = (1, 2) then (10, lost), s = (1, 3): (1 + 6)/4, then (10 + 3*2)/4."""
    algorithm, population = FedVARP(lost="reuse"), Population.of(np.ones(2))
    server = algorithm.init_server(torch.zeros(1), population)
    first = recorded_round(0, [0, 1], population, draws=[1, 3]).received_view
    server, _ = algorithm.server_step(server, {"update": torch.tensor([[1.0], [2.0]])}, first)
    assert float(server["x"]) == -7 / 4
    second = recorded_round(1, [0, 1], population, draws=[1, 3], received=[True, False]).received_view
    server, _ = algorithm.server_step(server, {"update": torch.tensor([[10.0]])}, second)
    assert float(server["x"]) == -7 / 4 - 4
    np.testing.assert_array_equal(server["memory"].rows([0, 1]), [[10.0], [2.0]])


def test_options_that_cannot_be_are_refused():
    with pytest.raises(BadValue, match="lost"):
        FedVARP(lost="found")
