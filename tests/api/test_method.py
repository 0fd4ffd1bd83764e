"""`raylfl.method`: any method on arrays, against `simulate` and closed forms."""

import numpy as np
import pytest
import torch

import raylfl
from raylfl.algorithms import ALGORITHMS
from raylfl.core.population import Population
from raylfl.heterogeneity.links.bernoulli import Perfect
from raylfl.heterogeneity.topologies.graphs import Ring
from raylfl.heterogeneity.world import RunContext
from raylfl.testing import recorded_round, simulate

N, D = 5, 3
SPLIT = ("ssl", "splitfed")  # they cut the layers of a model
NAMES = [name for name in ALGORITHMS.names() if name not in SPLIT]
ON_GRAPHS = [name for name in NAMES if ALGORITHMS.choose({"name": name}, "algorithm")[0]().pattern.peers]


def quadratics(rng):
    """Gradients of N quadratics with curvatures of 1e-3 to 1e3, divided by the largest."""
    curvature = 10.0 ** rng.uniform(-3, 3, (N, D))
    curvature /= curvature.max()
    centres = rng.normal(size=(N, D))
    return lambda client, x, t: curvature[client] * (x - centres[client])


def rounds_of(name, rng):
    for r in range(6):
        size = N if r == 0 or name in ON_GRAPHS else int(rng.integers(2, N + 1))
        cohort = rng.permutation(N)[:size].tolist()
        yield r, cohort, {"steps": rng.integers(1, 4, N), "received": rng.random(size) < (1.0 if r == 0 else 0.7)}


@pytest.mark.parametrize("name", NAMES)
def test_a_method_on_arrays_takes_the_rounds_that_simulate_takes(name):
    rng = np.random.default_rng(7)
    gradient, x0, population = quadratics(rng), rng.normal(size=D), Population.of(np.ones(N, dtype=np.int64))
    method = raylfl.method(name, N, topology="ring" if name in ON_GRAPHS else None)
    recorded, states = [], [method.init(x0)]
    for r, cohort, given in rounds_of(name, rng):
        edges = Ring().edges(r, RunContext(0, population, r + 1), Perfect()) if name in ON_GRAPHS else None
        algorithm = method.algorithm
        one = recorded_round(r, cohort, population, **given, edges=edges, proximal=algorithm.proximal)
        p = algorithm.probabilities(states[-1].server, one.system_of())
        recorded.append(one if p is None else recorded_round(r, cohort, population, **given, inclusion=p))
        states.append(method.round(states[-1], gradient, cohort, **given))
    of_tensors = lambda i, x, r, t: torch.as_tensor(gradient(i, x.numpy(), t))  # noqa: E731
    for state, (server, clients) in zip(
        states[1:], simulate(method.algorithm, of_tensors, recorded, torch.tensor(x0), population), strict=True
    ):
        assert isinstance(state.x, np.ndarray)
        assert np.array_equal(state.x, server["x"].numpy())
        assert state.clients.keys() == clients.keys()
        for client, rows in clients.items():
            assert all(torch.equal(rows[key], state.clients[client][key]) for key in rows)
    assert not np.array_equal(states[-1].x, x0)


def test_a_state_is_a_value_from_which_rounds_can_be_repeated():
    gradient, method = quadratics(np.random.default_rng(1)), raylfl.method("scaffold", N)
    first = method.round(method.init(np.zeros(D)), gradient, [0, 2], steps=3)
    before = first.x.copy()
    again = [method.round(first, gradient, [1, 2], steps=3).x for _ in range(2)]
    assert np.array_equal(again[0], again[1])
    assert np.array_equal(first.x, before)
    assert first.index == 1
    assert sorted(first.clients) == [0, 2]


def test_fedavg_of_one_step_is_gradient_descent_on_the_weighted_objective():
    sizes = np.array([1, 2, 3, 4, 10])
    gradient, x = quadratics(np.random.default_rng(2)), torch.ones(D, dtype=torch.float64)
    method = raylfl.method("fedavg", sizes, aggregate="weighted")
    state = method.round(method.init(x), lambda i, x, t: torch.tensor(gradient(i, x.numpy(), t)), lr=0.5)
    expected = x - 0.5 * sum(n * gradient(i, x.numpy(), 0) for i, n in enumerate(sizes)) / sizes.sum()
    torch.testing.assert_close(state.x, expected, rtol=1e-13, atol=0)
    assert torch.equal(x, torch.ones(D, dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "keys", "message"),
    [
        (("fedavgg", N), {}, "fedavg"),
        (("fedprox", N), {"nu": 1.0}, r"algorithm.nu"),
        (("push_pull", N), {}, "topology=None, but must be a graph, such as ring"),
        (("fedavg", N), {"topology": "ring"}, "topology=ring, but must be null: FedAvg has a server"),
    ],
)
def test_what_a_method_cannot_be_is_refused_by_name(arguments, keys, message):
    with pytest.raises(raylfl.BadConfig, match=message):
        raylfl.method(*arguments, **keys)


def test_a_round_that_needs_all_clients_says_so():
    method = raylfl.method("mifa", N, init="all")
    with pytest.raises(raylfl.BadConfig, match="MIFA needs all 5 clients in round 0"):
        method.round(method.init(np.zeros(D)), lambda i, x, t: x, [0, 1])
