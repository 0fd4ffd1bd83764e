"""Objectives against their formulas in numpy."""

import numpy as np
import pytest
import torch

from raylfl.errors import BadValue
from raylfl.models.problem import DenseQuadratic, Quadratic, Ridge


def gradient(model, batch):
    (g,) = torch.autograd.grad(model.training_step(batch, 0), [model.x])
    return g


def place(model, x):
    with torch.no_grad():
        model.x.copy_(torch.as_tensor(x))
    return model


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return rng.standard_normal((12, 3)), rng.standard_normal(12), rng.standard_normal(3)


def test_ridge_on_all_rows_is_the_sum_of_squares_plus_the_penalty(rows):
    a, b, x = rows
    model = place(Ridge(dim=3, rows_per_client=12, lam=0.7), x)
    batch = torch.from_numpy(a), torch.from_numpy(b)
    assert model.training_step(batch, 0).item() == pytest.approx(((a @ x - b) ** 2).sum() + 0.7 * x @ x, rel=1e-13)
    np.testing.assert_allclose(gradient(model, batch), 2 * a.T @ (a @ x - b) + 1.4 * x, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_ridge_on_mini_batches_is_unbiased(rows, size):
    a, b, x = (torch.from_numpy(v) for v in rows)
    model = place(Ridge(dim=3, rows_per_client=12, lam=0.7), x)
    parts = [gradient(model, (a[k : k + size], b[k : k + size])) for k in range(0, 12, size)]
    torch.testing.assert_close(torch.stack(parts).mean(dim=0), gradient(model, (a, b)), rtol=1e-12, atol=1e-12)


def test_quadratic_is_half_the_squared_distance_for_the_right_coefficients():
    rng = np.random.default_rng(0)
    centre, x = rng.standard_normal((4, 3)), rng.standard_normal(3)
    model = place(Quadratic(dim=3), x)
    batch = (
        torch.full((4, 3), 0.5, dtype=torch.float64),
        torch.from_numpy(-centre),
        torch.from_numpy((centre**2).sum(axis=1) / 2),
    )
    expected = ((x - centre) ** 2).sum(axis=1).mean() / 2
    assert model.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-13)
    np.testing.assert_allclose(gradient(model, batch), x - centre.mean(axis=0), rtol=1e-12)


def test_dense_quadratic_has_gradient_h_x_minus_b():
    rng = np.random.default_rng(0)
    h, b, x = rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3)), rng.standard_normal(3)
    h = h + h.transpose(0, 2, 1)
    model = place(DenseQuadratic(dim=3), x)
    batch = torch.from_numpy(h), torch.from_numpy(b)
    expected = np.mean([x @ h_k @ x / 2 - b_k @ x for h_k, b_k in zip(h, b, strict=True)])
    assert model.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient(model, batch), (h @ x - b).mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("cls", [Ridge, Quadratic, DenseQuadratic])
def test_x_is_one_parameter_of_length_d_in_float64(cls):
    model = cls(dim=4, x0=-2.5, lr=0.125)
    assert [(name, p.dtype, p.tolist()) for name, p in model.named_parameters()] == [("x", torch.float64, [-2.5] * 4)]
    assert model.configure_optimizers().param_groups[0]["lr"] == 0.125


def test_validation_logs_the_loss(monkeypatch):
    model = Quadratic(dim=1, x0=3)
    batch = torch.ones(2, 1), torch.zeros(2, 1), torch.ones(2)
    logged = []
    monkeypatch.setattr(model, "log", lambda name, value, batch_size: logged.append((name, value.item(), batch_size)))
    model.validation_step(batch, 0)
    model.test_step(batch, 0)
    assert logged == [("loss", 10.0, 2)] * 2


@pytest.mark.parametrize(
    ("cls", "init_args", "key"),
    [(Quadratic, {"dim": 0}, "dim"), (Ridge, {"lam": -1.0}, "lam"), (Ridge, {"rows_per_client": 0}, "rows_per_client")],
)
def test_impossible_options_are_refused_by_name(cls, init_args, key):
    with pytest.raises(BadValue, match=f"^{key}="):
        cls(**init_args)
