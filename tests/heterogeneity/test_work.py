"""K_i and B_i against their formulas, computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.core.population import Population
from raylfl.errors import BadValue
from raylfl.heterogeneity.work import LocalWork
from raylfl.heterogeneity.world import RunContext

SIZES = [1, 10, 63, 64, 65, 640]


def draw(work, sizes=SIZES, r=0, clients=None, seed=0):
    world = RunContext(seed, Population.of(np.array(sizes)), 100)
    clients = np.arange(len(sizes)) if clients is None else np.asarray(clients)
    return work.draw(r, clients, world)


def test_steps_do_not_depend_on_how_much_data_there_is_but_batches_do():
    steps, batch = draw(LocalWork(steps=7, batch_size=64))
    assert steps.tolist() == [7] * 6
    assert batch.tolist() == [1, 10, 63, 64, 64, 64]
    assert steps.dtype == batch.dtype == np.int64


def test_epochs_count_batches_the_last_one_smaller_and_accumulated_ones_as_one_step():
    assert draw(LocalWork(epochs=3, batch_size=64))[0].tolist() == [3, 3, 3, 3, 6, 30]
    # a B_i = 20: ceil(n_i / 20) steps; for drawn batch sizes floor(3 n_i / min(n_i, 20))
    steps, batch = draw(LocalWork(epochs=3, batch_size=10, accumulate=2))
    assert steps.tolist() == [3, 3, 12, 12, 12, 96]
    assert batch.tolist() == [1, 10, 10, 10, 10, 10]
    assert draw(LocalWork(epochs=3, batch_size={"uniform": [10, 10]}, accumulate=2))[0].tolist() == [3, 3, 9, 9, 9, 96]
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


@given(asked=st.lists(st.integers(0, 19), unique=True), r=st.integers(0, 99))
def test_a_clients_work_does_not_depend_on_the_other_clients(asked, r):
    work = LocalWork(epochs={"uniform": [2, 5]}, batch_size={"uniform": [10, None]}, dynamic=True)
    sizes = list(range(0, 400, 20))
    clients = np.array(asked, dtype=np.int64)
    some, everyone = draw(work, sizes, r, clients), draw(work, sizes, r)
    assert np.array_equal(some[0], everyone[0][clients])
    assert np.array_equal(some[1], everyone[1][clients])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 5, "epochs": 2}, "steps=5 beside epochs=2, but must be left out if epochs are given"),
        ({"steps": 0}, "steps=0, but must be a whole number, at least 1"),
        ({"epochs": 1.5}, "epochs=1.5, but must be a whole number, at least 1"),
        ({"batch_size": "all"}, "batch_size=all, but must be a whole number, at least 1 and at most 1e9, or full"),
        ({"batch_size": {"uniform": [0, None]}}, "batch_size.uniform=[0, None], but must be [lo, hi]"),
        ({"steps": {"uniform": [1, None]}}, "steps.uniform=[1, None], but must be [lo, hi] with lo <= hi"),
    ],
)
def test_refusals_name_key_value_and_remedy(options, says):
    with pytest.raises(BadValue) as caught:
        LocalWork(**options)
    assert says in str(caught.value)
