"""Constants of softmax regression against Hessians that autograd computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raylfl.api import checked
from raylfl.config.load import load_config
from raylfl.theory import softmax
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
    assert eigenvalues[-1] <= softmax.smoothness(inputs, decay) * (1 + 1e-9)
    assert eigenvalues[0] >= decay - 1e-9
    value, gradient = softmax.value_and_gradient(x.numpy(), inputs, labels, classes, decay)
    x.requires_grad_(True)
    torch_value = loss(x, *given_)
    torch_value.backward()
    assert value == pytest.approx(float(torch_value.detach()), rel=1e-9)
    assert gradient == pytest.approx(x.grad.numpy(), rel=1e-8, abs=1e-12)


def test_two_classes_attain_the_smoothness():
    """At x = 0 with two classes p = (1/2, 1/2), where the bound is an equality."""
    inputs, labels = np.random.default_rng(1).standard_normal((9, 3)), np.arange(9) % 2
    given_ = (torch.from_numpy(inputs), torch.from_numpy(labels), 2, 0.3)
    zero = torch.zeros(8, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda v: loss(v, *given_), zero)
    assert float(torch.linalg.eigvalsh(hessian)[-1]) == pytest.approx(softmax.smoothness(inputs, 0.3), rel=1e-12)


def test_a_run_of_logistic_regression_gets_them(tmp_path):
    e = checked(load_config("digits", [*SMALL, "model.name=logistic", "algorithm.name=sfl", "local.lr={theory: sfl}"]))
    theory = theory_of(e)
    x = e.setup.train.arrays[0].reshape(3, 8, -1)
    rows = np.concatenate([x, np.ones((3, 8, 1))], axis=2)
    expected = max(np.linalg.norm(r, 2) ** 2 / 8 / 2 + 0.1 for r in rows)
    assert theory.value("L") == pytest.approx(expected, rel=1e-9)
    assert theory.value("mu") == 0.1
    assert {c.symbol: c.how for c in theory.constants}["L"] == "exact, for all x"
    assert {c.symbol: c.how for c in theory.constants}["zeta"] == "estimate at x0"
    assert [(s.theorem, s.case) for s in theory.steps] == [("[2] Thm 1", "strongly convex")]
    assert e.rule.lr == pytest.approx(theory.steps[0].largest)


def test_a_network_is_no_softmax_regression():
    theory = theory_of(checked(load_config("digits", [*SMALL, "model={name: mlp, init_args: {hidden: [3]}}"])))
    assert {c.symbol: c.how for c in theory.constants}["L"].startswith("estimate at x0")
