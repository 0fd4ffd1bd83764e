"""FedVARP: a lost upload is replaced by the last one received."""

from __future__ import annotations

import numpy as np
import torch

from raylfl.algorithms.mifa import FedVARP
from raylfl.core.population import Population
from raylfl.testing import recorded_round


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
