"""The grammar of one value per client, against its definition and scipy's distributions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raylfl.core.population import Population
from raylfl.errors import BadValue
from raylfl.heterogeneity.clock import Clock
from raylfl.heterogeneity.links.bernoulli import Bernoulli
from raylfl.heterogeneity.values import COUNT, FAILURE, POSITIVE, PROBABILITY, Interval, PerClient
from raylfl.heterogeneity.work import LocalWork
from raylfl.heterogeneity.world import RunContext
from tests.heterogeneity.draws import Z, world

ANY = Interval("a number", -math.inf)


def values(spec, count, interval=ANY, r=0, clients=None, seed=0, rounds=100, top=None, **options):
    clients = np.arange(count) if clients is None else np.asarray(clients)
    parsed = PerClient(spec, "q", interval, purpose="test", **options)
    return parsed.at(r, clients, world(count, seed, rounds), top=top)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (0.25, [0.25] * 4),
        ({"value": 0.25}, [0.25] * 4),
        ([3, 1, 2], [3, 1, 2]),
        ({"list": [3, 1, 2]}, [3, 1, 2]),
        ((3, 1, 2), [3, 1, 2]),
        *(({"linspace": [2, 40]}, np.linspace(2, 40, count)) for count in (1, 2, 20)),
        *(
            ({"groups": [{**share, "linspace": [1, 3]}, {**share, "list": [7, 8, 9]}]}, [1, 2, 3, 7, 8, 9])
            for share in ({"fraction": 0.5}, {"count": 3})
        ),
    ],
)
def test_a_form_without_draws_gives_each_client_its_value(spec, expected):
    count = len(expected)
    np.testing.assert_allclose(values(spec, count), expected, rtol=1e-15)
    assert values(spec, count, clients=[count - 1, 0]).tolist() == [expected[-1], expected[0]]


def test_linspace_of_whole_numbers_is_rounded():
    assert values({"linspace": [1, 2]}, 4, COUNT).tolist() == [1, 1, 2, 2]


def test_uniform_draws_are_uniform_over_clients_and_over_rounds():
    over_clients = values({"uniform": [-1, 3]}, 4000)
    spec = PerClient({"uniform": [-1, 3]}, "q", ANY, purpose="test", dynamic=True)
    over_rounds = [spec.at(r, np.array([7]), world(10))[0] for r in range(1000)]
    for sample in (over_clients, over_rounds):
        assert stats.kstest(sample, stats.uniform(-1, 4).cdf).pvalue > 1e-4


def test_uniform_whole_numbers_include_both_ends_equally_often():
    drawn = values({"uniform": [3, 8]}, 12000, COUNT)
    numbers, seen = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == [3, 4, 5, 6, 7, 8]
    assert (abs(seen - 2000) < Z * math.sqrt(12000 * (1 / 6) * (5 / 6))).all()


def test_lognormal_takes_mean_and_sigma_of_the_logarithm_and_counts_are_at_least_one():
    drawn = values({"lognormal": [-3.0, 0.5]}, 4000, POSITIVE)
    assert stats.kstest(drawn, stats.lognorm(s=0.5, scale=math.exp(-3)).cdf).pvalue > 1e-4
    drawn = values({"lognormal": [0.0, 2.0]}, 500, COUNT)
    assert (drawn == np.rint(drawn)).all()
    assert drawn.min() == 1


def test_an_open_end_reaches_up_to_each_clients_own():
    interval = Interval("a whole number", 1, integer=True, open_top=True)
    top = np.array([12.0, 30.0, 4.0, 10.0])
    rounds = [values({"uniform": [10, None]}, 4, interval, r=r, top=top, dynamic=True) for r in range(400)]
    assert np.min(rounds, axis=0).tolist() == [10, 10, 10, 10]
    assert np.max(rounds, axis=0).tolist() == [12, 30, 10, 10]  # below 10 there is nothing to draw


def test_values_differ_by_seed_purpose_and_if_dynamic_by_round():
    spec = {"uniform": [0, 1]}
    assert (values(spec, 8, r=0) == values(spec, 8, r=5)).all()
    assert (values(spec, 8, r=0, dynamic=True) != values(spec, 8, r=5, dynamic=True)).all()
    assert (values(spec, 8) != values(spec, 8, seed=1)).all()
    assert (values(spec, 8) != PerClient(spec, "q", ANY, purpose="other").at(0, np.arange(8), world(8))).all()


def test_group_borders_are_rounded_fractions_of_the_clients():
    spec = {"groups": [{"fraction": 0.9, "value": 0}, {"fraction": 0.1, "value": 1}]}
    assert [int(values(spec, n).sum()) for n in (1, 5, 10, 32, 1000)] == [0, 0, 1, 3, 100]


def test_ranges_hold_exact_shares_of_random_clients_drawn_once():
    spec = {"ranges": [{"fraction": 0.9, "value": 0}, {"fraction": 0.1, "value": 1}]}
    members = np.array([values(spec, 20, seed=seed) for seed in range(400)])
    assert (members.sum(axis=1) == 2).all()
    assert (abs(members.mean(axis=0) - 0.1) < Z * math.sqrt(0.1 * 0.9 / 400)).all()
    spec = {"ranges": [{"count": 5, "uniform": [0, 1]}, {"count": 5, "uniform": [2, 3]}]}
    rounds = np.array([values(spec, 10, r=r, dynamic=True) for r in range(6)])
    assert ((rounds > 1.5) == (rounds[0] > 1.5)).all()
    assert len(np.unique(rounds)) == rounds.size


def test_phases_follow_the_fraction_of_the_runs_rounds_and_are_redrawn():
    spec = {"phases": [{"until": 0.1, "uniform": [0, 1]}, {"until": 0.5, "value": 5}, {"uniform": [7, 8]}]}
    rounds = np.array([values(spec, 3, r=r, rounds=30) for r in range(30)])  # 0.1*30 is 3.0000000000000004
    assert (rounds[:3] < 1).all()
    assert (rounds[3:15] == 5).all()
    assert (rounds[15:] > 7).all()
    assert len(np.unique(rounds[15:])) == 45


numbers = st.floats(-10, 10, allow_nan=False)
pairs = st.tuples(numbers, numbers).map(sorted)
leaves = st.one_of(
    numbers,
    st.builds(lambda p: {"linspace": p}, pairs),
    st.builds(lambda p: {"uniform": p}, pairs),
    st.builds(lambda m: {"lognormal": [m, 0.5]}, st.floats(-2, 2)),
)


def _inside(child, share):
    return {**share, **(child if isinstance(child, dict) else {"value": child})}


def _nested(children):
    halves = st.tuples(children, children)
    return st.one_of(
        st.builds(
            lambda kind, f, two: {
                kind: [_inside(two[0], {"fraction": f}), _inside(two[1], {"fraction": 1 - f})]
            },
            st.sampled_from(["groups", "ranges"]), st.floats(0.1, 0.9), halves,
        ),
        st.builds(lambda two: {"phases": [_inside(two[0], {"until": 0.4}), _inside(two[1], {})]}, halves),
    )  # fmt: skip


@given(
    spec=st.recursive(leaves, _nested, max_leaves=5),
    count=st.integers(1, 30),
    r=st.integers(0, 99),
    dynamic=st.booleans(),
    data=st.data(),
)
def test_a_clients_value_does_not_depend_on_the_other_clients(spec, count, r, dynamic, data):
    asked = data.draw(st.lists(st.integers(0, count - 1), unique=True))
    everyone = values(spec, count, r=r, dynamic=dynamic)
    some = values(spec, count, r=r, dynamic=dynamic, clients=np.array(asked, dtype=np.int64))
    assert np.array_equal(some, everyone[asked])


def test_ten_million_clients_cost_nothing_when_three_are_evaluated():
    spec = {"groups": [{"fraction": 0.5, "uniform": [0, 1]}, {"fraction": 0.5, "linspace": [0, 1]}]}
    population = Population(np.broadcast_to(np.int64(1), 10**7), np.broadcast_to(1e-7, 10**7))  # no memory
    clients = np.array([0, 10**7 - 1, 5_000_000])
    drawn = PerClient(spec, "q", ANY, purpose="test").at(0, clients, RunContext(0, population, 1))
    assert 0 < drawn[0] < 1
    assert drawn[1:].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("spec", "interval", "key", "says"),
    [
        (1.0, FAILURE, "q", "q=1.0, but must be a failure probability in [0, 1)"),
        (-0.1, PROBABILITY, "q", "a probability in [0, 1]"),
        ("0.3", PROBABILITY, "q", "{uniform: [lo, hi]}"),
        (None, PROBABILITY, "q", "a probability in [0, 1]"),
        ([0.1, 1.5], PROBABILITY, "q[1]", "a probability in [0, 1]"),
        ({"uniform": [0.4, 1.2]}, PROBABILITY, "q.uniform", "[lo, hi] with lo <= hi, each a probability"),
        ({"uniform": [0.4, 0.2]}, PROBABILITY, "q.uniform", "lo <= hi"),
        ({"uniform": [0.4]}, PROBABILITY, "q.uniform", "two numbers"),
        ({"uniform": [10, None]}, COUNT, "q.uniform", "lo <= hi"),
        ({"linspace": [0, 1.0]}, FAILURE, "q.linspace", "[first, last], each a failure probability"),
        ({"lognormal": [0, 1]}, PROBABILITY, "q.lognormal", "another form"),
        ({"lognormal": [0, -1]}, POSITIVE, "q.lognormal", "sigma >= 0"),
        ({"lognormal": [0, math.inf]}, POSITIVE, "q.lognormal", "sigma >= 0"),
        ({"normal": [0, 1]}, ANY, "q", "exactly one of value, list, linspace"),
        ({"uniform": [0, 1], "share": 1}, ANY, "q", "exactly one of value, list, linspace"),
        ({"uniform": [0, 1], "linspace": [0, 1]}, ANY, "q", "one may come from a base file"),
        ({"groups": []}, ANY, "q.groups", "`fraction`"),
        ({"groups": [3]}, ANY, "q.groups[0]", "a mapping"),
        ({"groups": [{"fraction": 1, "value": 1}, {"count": 1, "value": 1}]}, ANY, "q.groups", "all have"),
        ({"groups": [{"fraction": 0.5, "value": 1}]}, ANY, "q.groups", "fractions that sum to 0.5"),
        ({"groups": [{"fraction": 0, "value": 1}]}, ANY, "q.groups[0].fraction", "(0, 1]"),
        ({"ranges": [{"count": 2, "value": 7}]}, PROBABILITY, "q.ranges[0].value", "a probability"),
        ({"phases": [{"value": 1}, {"value": 2}]}, ANY, "q.phases", "rising fractions `until`"),
        ({"phases": [{"until": 0.5, "value": 1}]}, ANY, "q.phases", "the last without `until`"),
        ({"phases": [{"until": 1.0, "value": 1}, {"value": 1}]}, ANY, "q.phases", "rising fractions `until`"),
        ({"phases": [{"until": 0.0, "value": 1}, {"value": 1}]}, ANY, "q.phases", "rising fractions `until`"),
        ({"phases": [*({"until": u, "value": 1} for u in (0.2, 0.5, 0.4)), {"value": 1}]}, ANY, "q.phases", "rising"),
        ({"phases": [{"value": 1}]}, Interval("a number", 0, phases=False), "q.phases", "during a run"),
    ],
)
def test_refusals_name_key_value_and_remedy(spec, interval, key, says):
    with pytest.raises(BadValue) as caught:
        PerClient(spec, "q", interval, purpose="test")
    assert caught.value.key == key
    assert says in str(caught.value)
    assert ("base file" in str(caught.value)) == (spec == {"uniform": [0, 1], "linspace": [0, 1]})  # two forms


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ([0.1, 0.2], "q=2 entries, but must be 3, one per client"),
        ({"groups": [{"count": 4, "value": 1}]}, "q.groups=counts that sum to 4, but must be 3, all clients"),
        ({"groups": [{"count": 2, "list": [1]}, {"count": 1, "value": 1}]}, "groups[0].list=1 entries, but must be 2"),
        ({"phases": [{"until": 0.5, "value": 1}, {"list": [1, 2]}]}, "q.phases[1].list=2 entries, but must be 3"),
    ],
)
def test_what_does_not_fit_the_clients_is_refused_before_it_is_used(spec, says):
    parsed = PerClient(spec, "q", ANY, purpose="test")
    with pytest.raises(BadValue) as caught:
        parsed.at(0, np.arange(3), RunContext(0, Population.of(np.ones(3)), 1))
    assert says in str(caught.value)


@pytest.mark.parametrize("part", [Clock([1.0, 2.0]), Bernoulli([0.1, 0.2]), LocalWork(steps=[1, 2])])
def test_a_list_of_the_wrong_length_is_refused_by_check(part):
    with pytest.raises(BadValue, match=r"(seconds_per_step|q|steps)=2 entries, but must be 3, one per client"):
        part.check(RunContext(0, Population.of(np.ones(3)), 1))


def test_open_upper_ends_are_those_of_the_clients_within_any_part():
    """Groups, ranges and phases hand on each client's own upper end."""
    interval = Interval("a whole number", 1, integer=True, open_top=True)
    open_end, one = {"uniform": [1, None]}, {"value": 1}
    top = np.array([1000.0, 2000.0, 3000.0, 4000.0])
    spec = {"groups": [{"count": 1, **one}, {"count": 3, **open_end}]}
    drawn = np.array([values(spec, 4, interval, seed=seed, top=top) for seed in range(60)])
    assert set(drawn[:, 0]) == {1.0}
    assert (drawn[:, 1:] <= top[1:]).all()
    assert (drawn[:, 1:].max(axis=0) > 0.8 * top[1:]).all()
    spec = {"phases": [{"until": 0.5, **one}, open_end]}
    late = np.array([values(spec, 4, interval, r=60, seed=seed, top=top) for seed in range(60)])
    assert (late <= top).all()
    assert (late.max(axis=0) > 0.8 * top).all()


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        (PROBABILITY, [0, 1, 0.5], [-1e-12, 1 + 1e-12]),
        (FAILURE, [0, 1 - 1e-12], [-1e-12, 1]),
        (POSITIVE, [1e-300, 1e300], [0, -1]),
        (COUNT, [1, 10**9, 2.0], [0, 10**9 + 1, 1.5]),
        (ANY, [-1e300, 1e300, 0], []),
        (Interval("", 0.0, 2.0, open_low=True, open_high=True), [1e-12, 2 - 1e-12], [0, 2]),
    ],
)
def test_an_interval_holds_its_limits_unless_they_are_open_and_nothing_that_is_no_number(interval, inside, outside):
    assert all(number in interval for number in inside)
    never = [math.nan, math.inf, -math.inf, 10**400, True, False, "1", None, [1]]
    assert not any(number in interval for number in (*outside, *never))
    assert np.float32(1.0) in Interval("", 0.0)
    assert np.int64(1) in Interval("", 0.0)
