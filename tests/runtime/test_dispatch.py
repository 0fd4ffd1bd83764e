"""The sums that a server needs of a round's uploads: which, and with which coefficients."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.population import Population
from raylfl.errors import ClientFailed, NonFinite
from raylfl.experiment.parts import BUFFERS, MEAN, MOMENTS
from raylfl.runtime.round.dispatch import ServerDispatch, sum_plan
from raylfl.runtime.round.loop import _mean_moments
from raylfl.runtime.workers.task import ClientReports
from raylfl.testing import recorded_round

POPULATION = Population(np.array([10, 20, 30, 40]), np.array([0.1, 0.2, 0.3, 0.4]))


def planned(*names, steps=(2, 5, 1, 3), received=(True, False, True)):
    """{sum: (upload, coefficients)} of a round of clients 3, 0 and 2; names: of what is broadcast beside x."""
    r = recorded_round(0, [3, 0, 2], POPULATION, steps=steps, received=received)
    x = torch.zeros(3)
    plan = sum_plan(FedAvg(), {"x": x, **dict.fromkeys(names, x)}, {"x": x}, r)
    assert plan.clients.tolist() == [c for c, here in zip([3, 0, 2], received, strict=True) if here]
    return {name: (plan.terms[term][0], plan.terms[term][1].tolist()) for name, term in plan.term_of.items()}


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


def test_mean_moments_are_of_the_clients_that_took_a_step():
    rows, before = torch.tensor([[1.0, 2.0], [50.0, 50.0], [3.0, 8.0]]), torch.tensor([7.0, 7.0])
    weights = np.array([0.2, 0.3, 0.6])
    for steps, expected in (([1, 0, 2], [2.5, 6.5]), ([0, 0, 0], [7.0, 7.0]), ([0, 0, 5], [3.0, 8.0])):
        received = SimpleNamespace(steps=np.array(steps), weights=weights)
        assert _mean_moments(rows, received, before).tolist() == pytest.approx(expected)
    assert _mean_moments(rows[:1], SimpleNamespace(steps=np.zeros(1), weights=weights[:1]), before).tolist() == [1, 2]


def failures(errors, last_losses, last_loss=8.0, on_client_error="drop", on_nonfinite="drop"):
    """The events of a round 7 in which clients 4, 1 and 6 did not return a finite result."""
    here = object.__new__(ServerDispatch)
    policy = {"on_client_error": on_client_error, "on_nonfinite": on_nonfinite}
    here.runtime = SimpleNamespace(client_retries=2, **policy)
    reports = ClientReports.of([4, 9, 1, 6], last_loss=last_losses, finite=[False, True, False, False])
    reports.errors = errors
    return here._failures(SimpleNamespace(index=7), reports, last_loss)


def test_each_dropped_upload_has_a_line_with_its_reason_or_its_last_finite_loss():
    errors = {4: "Traceback\n  line 3\nValueError: odd \n"}
    assert failures(errors, [0.0, 0.0, 0.5, np.nan]) == [
        "client 4 failed in round 7 after 3 attempts: ValueError: odd",
        "client 1 sent a non-finite update in round 7; last finite loss 0.5",
        "client 6 sent a non-finite update in round 7; last finite loss 8",
    ]


def test_without_a_finite_loss_in_the_run_the_line_says_so():
    events = failures({}, [np.nan, 0.0, np.nan, np.nan], last_loss=np.nan)
    assert events[0] == "client 4 sent a non-finite update in round 7; no loss was finite so far"


def test_each_kind_of_failure_has_its_own_policy():
    with pytest.raises(ClientFailed, match=r"client 4 .*on_client_error=drop[^\0]*whole\nend"):
        failures({4: "whole\nend"}, 0.0, on_client_error="fail")
    with pytest.raises(NonFinite, match=r"client 1 .*last finite loss 0\.25 .*on_nonfinite=drop"):
        failures({4: "whole\nend"}, 0.25, on_nonfinite="fail")
    assert len(failures({4: "a", 1: "b", 6: "c"}, 0.0, on_nonfinite="fail")) == 3
    assert len(failures({}, 0.0, on_client_error="fail")) == 3
