"""K_i and B_i against their formulas, virtual time against sums by hand, losses against their probabilities."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raylfl.core.pattern import Ring, Star
from raylfl.core.population import Population
from raylfl.errors import BadValue
from raylfl.heterogeneity.clock import Clock
from raylfl.heterogeneity.links.bernoulli import Bernoulli
from raylfl.heterogeneity.work import LocalWork
from raylfl.heterogeneity.world import RunContext
from tests.heterogeneity.draws import Z, world

SIZES = [1, 10, 63, 64, 65, 640]


def draw(work, sizes=SIZES, r=0, clients=None, seed=0):
    world = RunContext(seed, Population.of(np.array(sizes)), 100)
    clients = np.arange(len(sizes)) if clients is None else np.asarray(clients)
    return work.draw(r, clients, world)


def test_epochs_count_batches_the_last_one_smaller_and_accumulated_ones_as_one_step():
    steps, batch = draw(LocalWork(steps=7, batch_size=64))  # steps do not depend on the number of samples
    assert (steps.tolist(), batch.tolist()) == ([7] * 6, [1, 10, 63, 64, 64, 64])
    assert steps.dtype == batch.dtype == np.int64
    assert draw(LocalWork(epochs=3, batch_size=64))[0].tolist() == [3, 3, 3, 3, 6, 30]
    # A B_i = 20: ceil(n_i / 20) steps; for drawn batch sizes floor(3 n_i / min(n_i, 20))
    steps, batch = draw(LocalWork(epochs=3, batch_size=10, accumulate=2))
    assert steps.tolist() == [3, 3, 12, 12, 12, 96]
    assert batch.tolist() == [1, 10, 10, 10, 10, 10]
    assert draw(LocalWork(epochs=3, batch_size={"uniform": [10, 10]}, accumulate=2))[0].tolist() == [3, 3, 9, 9, 9, 96]
    for constant in ({"value": 64}, {"linspace": [64, 64]}, {"groups": [{"fraction": 1, "value": 64}]}, [64] * 6):
        assert draw(LocalWork(epochs=3, batch_size=constant))[0].tolist() == [3, 3, 3, 3, 6, 30]
    steps, batch = draw(LocalWork(epochs=4, batch_size="full"))
    assert steps.tolist() == [4] * 6
    assert batch.tolist() == SIZES


@pytest.mark.parametrize("options", [{"steps": 5}, {"epochs": 3}, {"epochs": 3, "batch_size": {"uniform": [10, None]}}])
def test_a_client_without_data_takes_no_step(options):
    steps, batch = draw(LocalWork(**options), sizes=[0, 40])
    assert (steps[0], batch[0]) == (0, 0)
    assert steps[1] > 0


@given(
    sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=8),
    low=st.integers(1, 50),
    epochs=st.integers(1, 9),
    r=st.integers(0, 1000),
)
def test_drawn_batches_give_the_floor_of_epochs_times_samples_over_batch(sizes, low, epochs, r):
    """FedAWARE's hybrid+, with whole-number arithmetic of Python's own."""
    work = LocalWork(epochs=epochs, batch_size={"uniform": [low, None]}, dynamic=True)
    steps, batch = draw(work, sizes, r)
    for n, k, b in zip(sizes, steps.tolist(), batch.tolist(), strict=True):
        assert min(low, n) <= b <= n
        assert k == epochs * n // b >= 1


def test_dynamic_redraws_steps_epochs_and_batches_together():
    work = LocalWork(epochs={"uniform": [1, 1000]}, batch_size={"uniform": [1, 1000]}, dynamic=True)
    one, two = draw(work, [1000] * 30, r=0), draw(work, [1000] * 30, r=1)
    assert (one[0] != two[0]).any()
    assert (one[1] != two[1]).any()
    still = LocalWork(epochs={"uniform": [1, 1000]}, batch_size={"uniform": [1, 1000]})
    assert np.array_equal(draw(still, [1000] * 30, r=0), draw(still, [1000] * 30, r=1))


@given(asked=st.lists(st.integers(0, 19), unique=True), r=st.integers(0, 10**6))
def test_a_clients_work_and_losses_do_not_depend_on_the_other_clients(asked, r):
    work = LocalWork(epochs={"uniform": [2, 5]}, batch_size={"uniform": [10, None]}, dynamic=True)
    sizes, clients = list(range(0, 400, 20)), np.array(asked, dtype=np.int64)
    some, everyone = draw(work, sizes, r, clients), draw(work, sizes, r)
    assert np.array_equal(some, np.array(everyone)[:, clients])
    for dynamic in (False, True):
        link = Bernoulli({"uniform": [0.2, 0.8]}, dynamic=dynamic)
        assert np.array_equal(link.lost(r, clients, world(20)), link.lost(r, np.arange(20), world(20))[clients])


WORLD = RunContext(0, Population.of(np.full(4, 10)), 100)
STEPS, CLIENTS = np.array([10, 3]), np.array([2, 1])


def round_seconds(clock, floats, pattern):
    return clock.round_seconds(clock.computation(STEPS, CLIENTS, WORLD), floats, pattern)


def test_a_parallel_round_waits_for_the_slowest_and_a_ring_for_all_whose_floats_may_differ():
    clock = Clock(seconds_per_step=[9.0, 2.0, 0.5, 9.0], bandwidth=100.0)
    # client 2: 10*0.5 + (300 + 100)/100 = 9;  client 1: 3*2 + (300 + 100)/100 = 10
    assert round_seconds(clock, 400, Star()) == pytest.approx(10.0)
    assert round_seconds(clock, 400, Ring()) == pytest.approx(19.0)
    clock = Clock(seconds_per_step=1.0, bandwidth=10.0)
    floats = np.array([50.0, 100.0])
    assert round_seconds(clock, floats, Star()) == pytest.approx(15.0)
    assert round_seconds(clock, floats, Ring()) == pytest.approx(28.0)
    assert round_seconds(Clock(0.5), 2e12, Star()) == 5.0


def test_computation_is_the_sum_over_the_cohort_and_an_empty_one_takes_no_time_and_sends_no_message():
    """Not even in a ring, whose last client sends to the server what the first has received from it."""
    assert Clock([9.0, 2.0, 0.5, 9.0], 1.0).computation(STEPS, CLIENTS, WORLD).sum() == pytest.approx(11.0)
    empty = np.array([], dtype=np.int64)
    assert len(Clock().computation(empty, empty, WORLD)) == 0
    for pattern in (Star(), Ring()):
        assert Clock(bandwidth=1.0).round_seconds(np.zeros(0), 10, pattern) == 0.0
        assert len(pattern.hops(0)) == 0
    assert Ring().hops(2).tolist() == [[-1, 0, 0], [0, 1, 1], [1, -1, 1]]  # from, to, waiting


def test_lognormal_speeds_are_drawn_once_per_client():
    many = RunContext(0, Population.of(np.full(2000, 10)), 100)
    clock = Clock({"lognormal": [-4.0, 1.0]})
    speeds = [float(clock.computation(np.array([1]), np.array([i]), many)[0]) for i in range(2000)]
    assert stats.kstest(speeds, stats.lognorm(s=1.0, scale=np.exp(-4)).cdf).pvalue > 1e-4
    again = clock.computation(np.ones(2000, dtype=np.int64), np.arange(2000), many)
    assert again.tolist() == speeds


ROUNDS = 1500


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


@pytest.mark.parametrize(
    ("part", "options", "says"),
    [
        (LocalWork, {"steps": 5, "epochs": 2}, "steps=5 beside epochs=2, but must be left out if epochs are given"),
        (LocalWork, {"steps": 0}, "steps=0, but must be a whole number, at least 1"),
        (LocalWork, {"epochs": 1.5}, "epochs=1.5, but must be a whole number, at least 1"),
        (
            LocalWork,
            {"batch_size": "all"},
            "batch_size=all, but must be a whole number, at least 1 and at most 1e9, or",
        ),
        (LocalWork, {"batch_size": {"uniform": [0, None]}}, "batch_size.uniform=[0, None], but must be [lo, hi]"),
        (Clock, {"bandwidth": 0}, "bandwidth=0, but must be > 0, floats per second, up and down, or null"),
        (Clock, {"seconds_per_step": -1}, "seconds_per_step=-1, but must be a number above 0"),
        (Clock, {"seconds_per_step": {"phases": [{"until": 0.5, "value": 1}, {"value": 2}]}}, "cannot change during"),
        (Bernoulli, {"q": 1.0}, "q=1.0, but must be a failure probability in [0, 1)"),
    ],
)
def test_refusals_name_key_value_and_remedy(part, options, says):
    with pytest.raises(BadValue) as caught:
        part(**options)
    assert says in str(caught.value)
