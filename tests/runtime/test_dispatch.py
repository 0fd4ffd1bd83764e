"""The sums that a server needs of a round's uploads: which, and with which coefficients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.population import Population
from raylfl.parts import BUFFERS, MEAN, MOMENTS
from raylfl.runtime.round.dispatch import sum_plan
from raylfl.testing import recorded_round

POPULATION = Population(np.array([10, 20, 30, 40]), np.array([0.1, 0.2, 0.3, 0.4]))


def planned(*names, steps=(2, 5, 1, 3), received=(True, False, True)):
    """{sum: (upload, coefficients)} of a round of clients 3, 0 and 2; names: of what is broadcast beside x."""
    r = recorded_round(0, [3, 0, 2], POPULATION, steps=steps, received=received)
    x = torch.zeros(3)
    plan = sum_plan(FedAvg(), {"x": x, **dict.fromkeys(names, x)}, {"x": x}, r)
    assert plan.clients.tolist() == [c for c, here in zip([3, 0, 2], received, strict=True) if here]
    return {name: (plan.terms[at][0], plan.terms[at][1].tolist()) for name, at in plan.at.items()}


def test_the_mean_update_of_the_received_has_their_weights():
    upload, coefficients = planned()[MEAN]
    assert upload == "update"
    assert coefficients == pytest.approx([0.4 / 0.7, 0.3 / 0.7])


def test_buffers_are_averaged_with_equal_weights_and_moments_with_the_clients():
    base = planned()
    assert not {BUFFERS, MOMENTS} & set(base)
    found = planned(BUFFERS, MOMENTS)
    assert found.pop(BUFFERS) == (BUFFERS, [0.5, 0.5])
    upload, coefficients = found.pop(MOMENTS)
    assert (upload, coefficients) == (MOMENTS, pytest.approx([0.4 / 0.7, 0.3 / 0.7]))
    assert found == base


def test_moments_are_no_sum_where_a_received_client_took_no_step():
    """Its moments are from before the round, so the mean leaves them out."""
    assert MOMENTS not in planned(MOMENTS, steps=(2, 5, 0, 3))
    assert MOMENTS in planned(MOMENTS, steps=(0, 5, 1, 3))  # client 0 was not received
    assert MOMENTS not in planned(steps=(2, 5, 1, 3))


def test_nothing_is_summed_where_nothing_was_received():
    assert planned(BUFFERS, MOMENTS, received=(False, False, False)) == {}
