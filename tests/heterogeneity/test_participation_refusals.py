"""Options of participation that make no sense, or do not fit the clients, are refused with key, value and remedy."""

import numpy as np
import pytest

from raylfl.errors import BadValue
from raylfl.heterogeneity.participation.availability import Full
from raylfl.heterogeneity.participation.base import Draw
from tests.heterogeneity.draws import build, world


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("uniform", {}, "size=None beside fraction=None, but must be one of the two"),
        ("uniform", {"size": 3, "fraction": 0.5}, "size=3 beside fraction=0.5, but must be one of the two"),
        ("weighted", {"size": 2, "weights": "datasize"}, "weights=datasize, but must be a list, random"),
        ("weighted", {"size": 2, "weights": None}, "weights=None, but must be a list, random or data_size"),
        ("weighted", {"size": 2, "weights": [1, -1]}, "weights[1]=-1, but must be a weight, at least 0"),
        ("weighted", {"size": 2, "weights": [0, 0]}, "weights=[0, 0], but must be above 0 for at least one"),
        ("bernoulli", {"p": 1.2}, "p=1.2, but must be a probability in [0, 1]"),
        ("sinusoid", {"amplitude": 0.6}, "amplitude=0.6, but must be in [0, 0.5], the amplitude A"),
        ("markov", {"p_on": 0.1}, "p_off=None, but must be given (both p_on and p_off), unless there is a matrix"),
        ("markov", {"p_on": 0.1, "matrix": [[1, 0], [0, 1]]}, "but must be left out where p_on and p_off"),
        ("markov", {"matrix": [[0.9, 0.2], [0.5, 0.5]]}, "[on -> off, stay on]], each row >= 0 with sum 1"),
        ("markov", {"matrix": [[0.9, 0.1]]}, "[on -> off, stay on]], each row >= 0 with sum 1"),
        ("uniform", {"size": 2, "availability": {"name": "uniform"}}, "an availability process: bernoulli, full"),
        ("uniform", {"size": 2, "availability": {"name": "bernouli"}}, "did you mean bernoulli?"),
        ("uniform", {"size": 2, "availability": {"p": 0.3}}, "availability.name=None, but must be one of"),
        ("uniform", {"size": 2, "availability": {"name": "bernoulli", "q": 1}}, "availability.q=1, but must be one of"),
        ("uniform", {"size": 2, "availability": {"name": "full", "on_empty": "skip"}}, "(set participation.on_empty)"),
        # beside the number of clients
        ("uniform", {"size": 13}, "size=13, but must be 1..12, the number of clients"),
        ("weighted", {"size": 2, "weights": [1, 2]}, "weights=2 entries, but must be 12, one per client"),
        ("bernoulli", {"p": [0.5]}, "p=1 entries, but must be 12, one per client"),
        ("sinusoid", {"p": [0.5]}, "p=1 entries, but must be 12, one per client"),
        ("staircase", {"p": [0.5] * 13}, "p=13 entries, but must be 12, one per client"),
        ("cyclic", {"size": 3, "groups": 5}, "size=3, but must be at most 2 clients, the smallest of 5"),
        ("cyclic", {"fraction": 0.5, "groups": 4}, "fraction=0.5 (6 clients), but must be at most 3 clients"),
        ("cyclic", {"size": 1, "groups": 13}, "groups=13, but must be 1..12, the number of clients"),
        ("markov", {"p_on": 0.0, "p_off": 0}, "p_on=0 beside p_off=0 (client 0), but must be above 0"),
        ("uniform", {"size": 2, "availability": {"name": "bernoulli", "p": [0.5]}}, "availability.p=1 entries, but"),
    ],
)  # fmt: skip
def test_refusals_name_key_value_and_remedy(name, options, says):
    with pytest.raises(BadValue) as caught:
        build(name, **options).check(world())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("uniform", {"size": 12}),
        ("uniform", {"size": 13, "replace": True}),
        ("uniform", {"fraction": 1.0}),
        ("weighted", {"size": 12, "weights": [0] * 11 + [1]}),
        ("bernoulli", {"p": 0}),
        ("bernoulli", {"p": 1}),
        ("sinusoid", {"amplitude": 0}),
        ("sinusoid", {"amplitude": 0.5}),
        ("staircase", {"amplitude": 1, "period": 2}),
        ("cyclic", {"size": 1, "groups": 12}),
        ("cyclic", {"size": 2, "groups": 5}),
        ("cyclic", {"fraction": 0.25, "groups": 4}),
        ("markov", {"p_on": 0.0, "p_off": 0.1}),
        ("markov", {"p_on": 1.0, "p_off": 0.0}),
    ],
)  # fmt: skip
def test_values_at_their_bounds_are_accepted(name, options):
    process = build(name, **options)
    process.check(world())
    assert all(len(process.draw(r, world()).cohort) <= 12 for r in range(3))


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ([0, 1], "returned list"),
        (Draw.once(np.array([1, 4])), "returned clients 1..4"),
        (Draw.once(np.array([-1, 2])), "returned clients -1..2"),
        (Draw.once(np.array([2, 2, 0])), "returned a client twice"),
        (Draw(np.array([0, 2]), np.array([1, 0])), "returned draws [1, 0] of 2 clients"),
        (Draw(np.array([0, 2]), np.array([1])), "returned draws [1] of 2 clients"),
    ],
)
def test_a_draw_that_is_no_cohort_is_refused(drawn, words):
    class Own(Full):
        def attempt(self, r, world, attempt):
            return drawn

    with pytest.raises(BadValue, match=r"must be a Draw: distinct clients of 0..3, each drawn") as told:
        Own().draw(0, world(count=4))
    assert f"participation=Own.attempt {words}" in str(told.value)
