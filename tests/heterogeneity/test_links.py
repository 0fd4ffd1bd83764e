"""Links fail with their stated probability, independently, for any set of sampled clients."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.core.population import Population
from raylfl.errors import BadValue
from raylfl.heterogeneity.links.bernoulli import Bernoulli
from raylfl.heterogeneity.world import RunContext

Z = 5.0  # standard errors: once in two million comparisons by chance, and keys are fixed
ROUNDS = 3000


def world(count, seed=0):
    return RunContext(seed, Population.of(np.full(count, 10)), ROUNDS)


def losses(link, count, rounds=ROUNDS, seed=0):
    everyone = np.arange(count)
    return np.array([link.lost(r, everyone, world(count, seed)) for r in range(rounds)])


@pytest.mark.parametrize("q", [[0.0, 0.02, 0.3, 0.5, 0.9], {"linspace": [0.01, 0.3]}])
def test_uploads_are_lost_as_often_as_q_says(q):
    link = Bernoulli(q)
    nominal = link.failure(0, np.arange(5), world(5))
    error = losses(link, 5).mean(axis=0) - nominal
    assert (abs(error) <= Z * np.sqrt(nominal * (1 - nominal) / ROUNDS)).all()


def test_losses_of_clients_and_of_rounds_are_uncorrelated():
    lost = losses(Bernoulli(0.5), 8).astype(float)
    across = np.corrcoef(lost.T)[np.triu_indices(8, 1)]
    along = [np.corrcoef(lost[:-1, i], lost[1:, i])[0, 1] for i in range(8)]
    assert (abs(np.concatenate([across, along])) < Z / math.sqrt(ROUNDS)).all()


def test_a_dynamic_q_is_redrawn_and_losses_follow_its_mean():
    link = Bernoulli({"uniform": [0.4, 0.6]}, dynamic=True)
    q = np.array([link.failure(r, np.arange(4), world(4)) for r in range(ROUNDS)])
    assert len(np.unique(q)) == q.size
    assert (abs(losses(link, 4).mean(axis=0) - 0.5) < Z * math.sqrt(0.25 / ROUNDS)).all()


@given(asked=st.lists(st.integers(0, 39), unique=True), r=st.integers(0, 10**6), dynamic=st.booleans())
def test_a_clients_loss_does_not_depend_on_the_other_clients(asked, r, dynamic):
    link = Bernoulli({"uniform": [0.2, 0.8]}, dynamic=dynamic)
    clients = np.array(asked, dtype=np.int64)
    assert np.array_equal(link.lost(r, clients, world(40)), link.lost(r, np.arange(40), world(40))[clients])


@pytest.mark.parametrize(
    ("q", "says"),
    [
        (1.0, "q=1.0, but must be a failure probability in [0, 1)"),
        ({"linspace": [0.0, 1.0]}, "q.linspace=[0.0, 1.0], but must be [first, last], each a failure"),
        ([0.1, 2], "q[1]=2, but must be a failure probability in [0, 1)"),
    ],
)
def test_refusals_name_key_value_and_remedy(q, says):
    with pytest.raises(BadValue) as caught:
        Bernoulli(q)
    assert says in str(caught.value)
