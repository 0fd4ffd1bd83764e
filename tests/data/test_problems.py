"""Optima against autograd of the real models and against least squares; samples against their definitions."""

import numpy as np
import pytest
import torch

from raylfl.data import DATA
from raylfl.data.base import client_weights
from raylfl.data.synthetic import Coefficients, DenseQuadratics, LogisticRegressionSynthetic, Quadratics, Ridge
from raylfl.errors import BadValue
from raylfl.models import MODELS
from raylfl.models.base import fitted_args

PAIRS = [
    (Ridge(num_clients=5, rows_per_client=7, dim=4, lam=0.3, seed=1), "ridge"),
    (Ridge(num_clients=2, rows_per_client=2, dim=6, lam=0.3, seed=1), "ridge"),
    (Quadratics(num_clients=6, dim=3, seed=1), "quadratic"),
    (Coefficients([[2 / 3, 5], [1 / 3, -5], [0, 1]], dim=2), "quadratic"),
    (DenseQuadratics(num_clients=4, dim=5, condition=50, seed=1), "dense_quadratic"),
]
FOUR = ["ridge", "quadratics", "dense_quadratics", "logistic_regression_synthetic"]


def client_gradients(data, model, x):
    """grad f_i(x) [N, d] of the shipped model on each client's own samples."""
    with torch.no_grad():
        model.x.copy_(x)
    rows = []
    for indices in data.client_indices:
        batch = [column[indices] for column in data.train_dataset.tensors]
        rows += torch.autograd.grad(model.training_step(batch, 0), [model.x])
    return torch.stack(rows)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("data", "name"), PAIRS, ids=lambda v: type(v).__name__)
def test_the_weighted_gradient_vanishes_at_the_optimum_and_nowhere_near(data, name, weighted):
    cls = MODELS.get(name).cls
    model = cls(**fitted_args(cls, {}, data))
    given = np.random.default_rng(0).uniform(0.5, 2.0, data.num_clients) if weighted else None
    w = np.ones(data.num_clients) if given is None else given
    x = data.optimum(given)
    assert (x.shape, x.dtype) == ((data.dim,), torch.float64)
    share = torch.from_numpy(w / w.sum())
    gradients = client_gradients(data, model, x)
    scale = float(gradients.abs().max())
    assert float((share @ gradients).abs().max()) < 1e-13 * scale  # rounding of sums of tens of terms
    assert float((share @ client_gradients(data, model, x + 1e-3)).abs().max()) > 1e-6 * scale


def test_ridge_rows_are_scaled_gaussians_and_the_noise_is_a_tenth():
    """For 2,000 rows in 50 dimensions, |a|^2/50 averages E u^2 = 7/12, and residuals have deviation 0.1."""
    data = Ridge(num_clients=20, rows_per_client=100, dim=50)
    a, b = (column.numpy() for column in data.train_dataset.tensors)
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((2000, 50), (2000,), np.float64, np.float64)
    lengths = (a**2).mean(axis=1)
    assert lengths.mean() == pytest.approx(7 / 12, rel=0.03)
    u = np.sqrt(lengths)
    assert u.min() > 0.3
    assert u.max() < 1.35
    assert (a.mean(), (a.T @ a / 2000 - 7 / 12 * np.eye(50)).max()) == pytest.approx((0, 0), abs=0.1)
    solution, (residual,), *_ = np.linalg.lstsq(a, b)
    assert np.sqrt(residual / 1950) == pytest.approx(0.1, rel=0.06)
    assert np.linalg.norm(solution) == pytest.approx(np.sqrt(50), rel=0.4)  # x_o ~ N(0, I)


def test_ridge_without_a_penalty_needs_enough_rows():
    with pytest.raises(BadValue, match=r"^lam=0\.0"):
        Ridge(num_clients=2, rows_per_client=1, dim=5, lam=0.0).optimum()
    assert Ridge(num_clients=2, rows_per_client=5, dim=5, lam=0.0).optimum().shape == (5,)


def test_quadratics_lose_half_the_squared_distance_and_average_their_centres():
    data = Quadratics(num_clients=4, dim=3, seed=5)
    cls = MODELS.get("quadratic").cls
    model = cls(**fitted_args(cls, {"x0": 1.5}, data))
    for k in range(4):
        batch = [column[k : k + 1] for column in data.train_dataset.tensors]
        expected = float(((1.5 - data.centres[k]) ** 2).sum()) / 2
        assert model.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-14)
    torch.testing.assert_close(data.optimum(), data.centres.mean(dim=0))
    centres = Quadratics(num_clients=2000, dim=10).centres  # 20,000 normals
    assert (float(centres.mean()), float(centres.std())) == pytest.approx((0, 1), abs=0.03)


@pytest.mark.parametrize(
    ("pairs", "optimum"),
    [
        ([[0.5, 0], [0.5, 0]], 0.0),
        ([[0.5, 10], [0.5, -10]], 0.0),
        ([[2 / 3, 100], [1 / 3, -100]], 0.0),
        ([[1, 1], [0, -1]], 0.0),
        ([[1, 3], [0, -1]], -1.0),
    ],
)
def test_coefficients_have_the_minimum_of_their_sum(pairs, optimum):
    """SFL's groups all have their minimum at 0; (A1 + A2) x^2 + (B1 + B2) x otherwise."""
    assert Coefficients(pairs).optimum().tolist() == pytest.approx([optimum])


def test_coefficients_lose_a_x_squared_plus_b_x_and_have_a_minimum_or_say_so():
    data = Coefficients([[2 / 3, 5.0], [1 / 3, -5.0]])
    model = MODELS.get("quadratic").cls(dim=1, x0=10)
    for k, expected in enumerate([200 / 3 + 50, 100 / 3 - 50]):
        batch = [column[k : k + 1] for column in data.train_dataset.tensors]
        assert model.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-14)
    with pytest.raises(BadValue, match=r"^pairs="):
        Coefficients([[0, 1], [0, -1]]).optimum()
    with pytest.raises(BadValue, match=r"^pairs="):
        Coefficients([[1, -1], [0, 1]]).optimum([0, 1])


def test_dense_quadratics_are_symmetric_with_the_configured_condition():
    data = DenseQuadratics(num_clients=6, dim=7, condition=30.0, seed=3)
    h = data.h.numpy()
    np.testing.assert_array_equal(h, h.transpose(0, 2, 1))
    eigenvalues = np.linalg.eigvalsh(h)
    np.testing.assert_allclose(eigenvalues[:, 0], 1 / 30, rtol=1e-12)
    np.testing.assert_allclose(eigenvalues[:, -1], 1.0, rtol=1e-12)
    assert not np.allclose(h[0], h[1])
    assert DenseQuadratics(spread=0.0).optimum().tolist() == [0.0] * 10


def test_synthetic_clients_differ_in_inputs_by_beta_and_in_labels_by_alpha():
    def spread_of_means(beta):
        data = LogisticRegressionSynthetic(num_clients=200, rows_per_client=10, dim=8, beta=beta)
        x = data.train_dataset.tensors[0].view(200, 10, 8)
        return float(x.mean(dim=(1, 2)).var())  # of v_i's mean (beta + 1/8) and of the rows' noise

    noise = float(sum(j**-1.2 for j in range(1, 9))) / 8**2 / 10
    for beta in (0.0, 4.0):  # 200 clients: a variance is known to 10 %, 3 sigma is 30 %
        assert spread_of_means(beta) == pytest.approx(beta + 1 / 8 + noise, rel=0.3)


def test_synthetic_inputs_vary_less_from_one_coordinate_to_the_next():
    x, _ = LogisticRegressionSynthetic(num_clients=1, rows_per_client=5000, dim=6).train_dataset.tensors
    expected = torch.tensor([j**-1.2 for j in range(1, 7)], dtype=torch.float64)
    torch.testing.assert_close(x.var(dim=0), expected, rtol=0.07, atol=0)  # 3.5 sigma of 5,000 rows


def test_synthetic_labels_are_those_of_a_linear_model_per_client():
    """A linear classifier fitted to one client's rows separates them."""
    data = LogisticRegressionSynthetic(num_clients=3, rows_per_client=40, dim=5, num_classes=2, seed=4)
    x, y = data.train_dataset.tensors
    assert (x.dtype, y.dtype, x.shape, data.in_shape) == (torch.float64, torch.int64, (120, 5), (5,))
    assert torch.equal(y, data.targets)
    assert set(y.tolist()) <= {0, 1}
    assert not torch.equal(x, data.test_dataset.tensors[0])
    from sklearn.linear_model import LogisticRegression

    for indices in data.client_indices:
        if len(set(y[indices].tolist())) == 2:
            fit = LogisticRegression(C=1e6, max_iter=10_000).fit(x[indices], y[indices])
            assert fit.score(x[indices], y[indices]) == 1.0


@pytest.mark.parametrize("name", FOUR)
def test_every_sample_has_one_owner_and_depends_on_the_seed_and_on_nothing_else(name):
    cls = DATA.get(name).cls
    data = cls(num_clients=3)
    assert sorted(index for indices in data.client_indices for index in indices) == list(range(len(data.train_dataset)))
    assert len(data.client_indices) == data.num_clients == 3
    one = cls(seed=7).train_dataset.tensors
    np.random.default_rng().random()
    torch.rand(3)
    again, other = cls(seed=7).train_dataset.tensors, cls(seed=8).train_dataset.tensors
    assert all(torch.equal(p, q) for p, q in zip(one, again, strict=True))
    assert not torch.equal(one[-1], other[-1])


def test_client_weights_are_normalised_and_checked():
    assert client_weights(None, 4).tolist() == [0.25] * 4
    assert client_weights([1, 3], 2).tolist() == [0.25, 0.75]
    for bad in ([1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(BadValue, match=r"^weights="):
            client_weights(bad, 2)


@pytest.mark.parametrize(
    ("cls", "init_args", "key"),
    [
        (Ridge, {"num_clients": 0}, "num_clients"),
        (Ridge, {"lam": -1.0}, "lam"),
        (Quadratics, {"dim": 0}, "dim"),
        (Coefficients, {"pairs": [[1, 2, 3]]}, "pairs"),
        (Coefficients, {"pairs": []}, "pairs"),
        (DenseQuadratics, {"condition": 0.5}, "condition"),
        (LogisticRegressionSynthetic, {"alpha": -1.0}, "alpha"),
        (LogisticRegressionSynthetic, {"num_classes": 0}, "num_classes"),
    ],
)
def test_impossible_options_are_refused_by_name(cls, init_args, key):
    with pytest.raises(BadValue, match=f"^{key}="):
        cls(**init_args)
