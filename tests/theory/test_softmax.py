"""Constants of softmax regression against Hessians that autograd computes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raylfl.config.load import load_config
from raylfl.execution.planned import prepare
from raylfl.theory import softmax
from raylfl.theory.softmax import SoftmaxProblem
from raylfl.theory.summary import theory_of

SMALL = [
    "num_clients=3",
    "data.name=logistic_regression_synthetic",
    "data.init_args={num_clients: 3, rows_per_client: 8, dim: 3, num_classes: 3}",
    "partition.name=natural",
    "runtime.backend=local",
    "dtype=float64",
    "local.weight_decay=0.1",
]


def loss(x, inputs, labels, classes, decay):
    """Cross entropy by torch."""
    p = inputs.shape[1]
    logits = inputs @ x[: classes * p].reshape(classes, p).T + x[classes * p :]
    return torch.nn.functional.cross_entropy(logits, labels) + decay / 2 * x @ x


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 4), st.floats(0, 2), st.floats(-2, 2))
def test_no_hessian_leaves_the_bounds(seed, classes, dim, decay, exponent):
    draw = np.random.default_rng(seed)
    inputs, labels = draw.standard_normal((6, dim)) * 2, draw.integers(0, classes, 6)
    x = torch.from_numpy(draw.standard_normal(classes * (dim + 1)) * 10**exponent)
    given_ = (torch.from_numpy(inputs), torch.from_numpy(labels), classes, decay)
    hessian = torch.autograd.functional.hessian(lambda v: loss(v, *given_), x).numpy()
    eigenvalues = np.linalg.eigvalsh(hessian)
    problem = softmax.SoftmaxProblem([(inputs, labels)], classes, decay, np.ones(1))
    assert eigenvalues[-1] <= problem.smoothness[0] * (1 + 1e-9)
    assert eigenvalues[0] >= decay - 1e-9
    value, gradient = softmax.value_and_gradient(x.numpy(), inputs, labels, classes, decay)
    x.requires_grad_(True)
    torch_value = loss(x, *given_)
    torch_value.backward()
    assert value == pytest.approx(float(torch_value.detach()), rel=1e-9)
    assert gradient == pytest.approx(x.grad.numpy(), rel=1e-8, abs=1e-12)


def test_two_classes_attain_the_smoothness_and_the_minimiser_has_no_gradient():
    """At x = 0 with two classes p = (1/2, 1/2), where the bound is an equality."""
    inputs, labels = np.random.default_rng(1).standard_normal((9, 3)), np.arange(9) % 2
    given_ = (torch.from_numpy(inputs), torch.from_numpy(labels), 2, 0.3)
    zero = torch.zeros(8, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda v: loss(v, *given_), zero)
    problem = softmax.SoftmaxProblem([(inputs, labels)], 2, 0.3, np.ones(1))
    assert float(torch.linalg.eigvalsh(hessian)[-1]) == pytest.approx(problem.smoothness[0], rel=1e-12)
    problem = problem_of(4)
    assert np.linalg.norm(problem.weights @ problem.values(problem.optimum)[1]) < 1e-6
    assert problem_of(4, decay=0.0).optimum is None


def problem_of(seed, clients=3, classes=3, dim=2, decay=0.2):
    draw = np.random.default_rng(seed)
    shards = [(draw.standard_normal((5, dim)) * 2, draw.integers(0, classes, 5)) for _ in range(clients)]
    return SoftmaxProblem(shards, classes, decay, draw.dirichlet(np.ones(clients)))


@given(st.integers(0, 10**6), st.floats(-1, 2))
def test_no_gradient_leaves_the_bounds(seed, exponent):
    """Slopes, deviation, dissimilarity and noise, at random points near and far."""
    problem, draw = problem_of(seed), np.random.default_rng(seed + 1)
    x, omega = draw.standard_normal(9) * 10**exponent, draw.dirichlet(np.ones(3))
    gradients, w = problem.values(x)[1], problem.weights
    slack = 1 + 1e-9
    assert (np.linalg.norm(gradients - problem.decay * x, axis=1) <= problem.slopes * slack).all()
    assert (np.linalg.norm(gradients - w @ gradients, axis=1) <= problem.deviation() * slack).all()
    spread = omega @ np.square(gradients - omega @ gradients).sum(axis=1)
    assert np.sqrt(spread) <= problem.dissimilarity(omega) * slack
    for (rows, labels), most in zip(problem.shards, problem.noise, strict=True):
        single = np.array([softmax.value_and_gradient(x, rows[[j]], labels[[j]], 3, 0.0)[1] for j in range(5)])
        assert np.square(single - single.mean(axis=0)).sum(axis=1).mean() <= most * slack


def test_logistic_regression_has_the_theorems_of_each_method():
    own = ["participation={name: uniform, size: 2}", "local.lr=1e-5", "local.batch_size=full", "model.name=logistic"]
    found = {}
    for name in ("focus", "sfl", "fedacs", "fedavg"):
        theory = theory_of(prepare(load_config("digits", [*SMALL, *own, f"algorithm.name={name}"])))
        assert all(np.isfinite(c.value) for c in theory.constants)
        assert all(s.admits(theory.eta) for s in theory.steps)
        found[name] = {s.theorem for s in theory.steps}, {p.theorem for p in theory.promises}
    assert found["focus"][0] == {"[1] Thm 1"}
    assert found["sfl"] == ({"[2] Thm 1"}, {"[2] Thm 1"})
    assert found["fedacs"] == ({"[3] Thm 3"}, {"[3] Thm 3"})
    assert found["fedavg"] == ({"[1] Thm 3", "[2] Thm 2", "[3] Thm 1"}, {"[2] Thm 2", "[3] Thm 1"})


def test_a_run_of_logistic_regression_gets_them(tmp_path):
    e = prepare(load_config("digits", [*SMALL, "model.name=logistic", "algorithm.name=sfl", "local.lr={theory: sfl}"]))
    theory = theory_of(e)
    x = e.setup.train.arrays[0].reshape(3, 8, -1)
    rows = np.concatenate([x, np.ones((3, 8, 1))], axis=2)
    expected = max(np.linalg.norm(r, 2) ** 2 / 8 / 2 + 0.1 for r in rows)
    assert theory.constants.value("L") == pytest.approx(expected, rel=1e-9)
    assert theory.constants.value("mu") == 0.1
    assert {c.symbol: c.how for c in theory.constants}["L"] == "bound, for all x"
    assert {c.symbol: c.how for c in theory.constants}["zeta"] == "bound, for all x"
    assert [(s.theorem, s.case) for s in theory.steps] == [("[2] Thm 1", "strongly convex")]
    assert e.rule.lr == pytest.approx(theory.steps[0].largest)


def test_a_network_is_no_softmax_regression():
    theory = theory_of(prepare(load_config("digits", [*SMALL, "model={name: mlp, init_args: {hidden: [3]}}"])))
    assert {c.symbol: c.how for c in theory.constants}["L"].startswith("estimate at x0")
