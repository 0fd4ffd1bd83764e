"""Virtual time against sums done by hand."""

import numpy as np
import pytest
from scipy import stats

from raylfl.core.pattern import Ring, Star
from raylfl.core.population import Population
from raylfl.errors import BadValue
from raylfl.heterogeneity.clock import Clock
from raylfl.heterogeneity.world import RunContext

WORLD = RunContext(0, Population.of(np.full(4, 10)), 100)
STEPS, CLIENTS = np.array([10, 3]), np.array([2, 1])


def test_a_parallel_round_waits_for_the_slowest_and_a_ring_for_all_whose_floats_may_differ():
    clock = Clock(seconds_per_step=[9.0, 2.0, 0.5, 9.0], bandwidth=100.0)
    # client 2: 10*0.5 + (300 + 100)/100 = 9;  client 1: 3*2 + (300 + 100)/100 = 10
    assert clock.round_seconds(STEPS, 300, 100, CLIENTS, Star(), WORLD) == pytest.approx(10.0)
    assert clock.round_seconds(STEPS, 300, 100, CLIENTS, Ring(), WORLD) == pytest.approx(19.0)
    clock = Clock(seconds_per_step=1.0, bandwidth=10.0)
    up, down = np.array([50.0, 0.0]), np.array([0.0, 100.0])
    assert clock.round_seconds(STEPS, up, down, CLIENTS, Star(), WORLD) == pytest.approx(15.0)
    assert clock.round_seconds(STEPS, up, down, CLIENTS, Ring(), WORLD) == pytest.approx(28.0)
    assert Clock(0.5).round_seconds(STEPS, 1e12, 1e12, CLIENTS, Star(), WORLD) == 5.0


def test_computation_is_the_sum_over_the_cohort_and_an_empty_one_takes_no_time():
    assert Clock([9.0, 2.0, 0.5, 9.0], 1.0).computation_seconds(STEPS, CLIENTS, WORLD) == pytest.approx(11.0)
    empty = np.array([], dtype=np.int64)
    for pattern in (Star(), Ring()):
        assert Clock(bandwidth=1.0).round_seconds(empty, 5, 5, empty, pattern, WORLD) == 0.0
    assert Clock().computation_seconds(empty, empty, WORLD) == 0.0


def test_lognormal_speeds_are_drawn_once_per_client():
    many = RunContext(0, Population.of(np.full(2000, 10)), 100)
    clock = Clock({"lognormal": [-4.0, 1.0]})
    speeds = [clock.computation_seconds(np.array([1]), np.array([i]), many) for i in range(2000)]
    assert stats.kstest(speeds, stats.lognorm(s=1.0, scale=np.exp(-4)).cdf).pvalue > 1e-4
    again = clock.computation_seconds(np.ones(2000, dtype=np.int64), np.arange(2000), many)
    assert again == pytest.approx(sum(speeds))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bandwidth": 0}, "bandwidth=0, but must be > 0, floats per second, up and down, or null"),
        ({"seconds_per_step": -1}, "seconds_per_step=-1, but must be a number above 0"),
        (
            {"seconds_per_step": {"phases": [{"until": 0.5, "value": 1}, {"value": 2}]}},
            "but must be another form: this value cannot change during a run",
        ),
    ],
)
def test_refusals_name_key_value_and_remedy(options, says):
    with pytest.raises(BadValue) as caught:
        Clock(**options)
    assert says in str(caught.value)
