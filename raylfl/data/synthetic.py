"""Synthetic problems: quadratics and ridge regression with known optima, and data for classification.

In the quadratics each client has one sample, and the loss of this sample is its objective f_i.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from raylfl.components.options import Doc, Ge
from raylfl.core.keyed import keyed
from raylfl.data import DATA
from raylfl.data.base import Count, DataSource, blocks, client_weights, tensors
from raylfl.errors import BadValue


@DATA.register("quadratics", paper="FedACS fig. 4")
class Quadratics(DataSource):
    """Quadratics f_m(x) = |x - E_m|^2 / 2 of clients m with E_m ~ N(0, I_d), for the model `quadratic`.

    The optimum for importance weights w is x* = sum_m w_m E_m. Samples are (1/2 [d], -E_m [d], |E_m|^2/2); see FedACS,
    fig. 4.
    """

    def __init__(self, num_clients: Count = 30, dim: Count = 10, seed: int = 0):
        self.num_clients, self.dim = num_clients, dim
        self.centres = torch.from_numpy(keyed(seed, "data/quadratics").standard_normal((num_clients, dim)))
        curvature = torch.full_like(self.centres, 0.5)
        self.train_dataset = tensors(curvature, -self.centres, self.centres.square().sum(dim=1) / 2)
        self.client_indices = blocks(num_clients, 1)

    def optimum(self, weights: Sequence[float] | Tensor | None = None) -> Tensor:
        """The optimum x* = sum_m w_m E_m [d], for importance weights w (None: uniform)."""
        return client_weights(weights, self.num_clients) @ self.centres


@DATA.register("coefficients", paper="SFL fig. 1")
class Coefficients(DataSource):
    """Quadratics f_i(x) = A_i |x|^2 + B_i sum_j x_j with given pairs (A_i, B_i), for the model `quadratic`.

    Samples are (A_i [d], B_i [d], 0). Every coordinate is the same one-dimensional problem.
    pairs: the pair [A, B] of each client. SFL's group 1 is [[0.5, 0], [0.5, 0]]. SFL's other groups are
    [[0.5, zeta], [0.5, -zeta]] (delta 0), [[2/3, zeta], [1/3, -zeta]] (delta 1/3) and [[1, zeta], [0, -zeta]] (delta
    1), for zeta 1, 10 or 100.
    """

    def __init__(self, pairs: tuple[tuple[float, float], ...] = ((0.5, 1.0), (0.5, -1.0)), dim: Count = 1):
        if not pairs:
            raise BadValue("pairs", got=pairs, need="[A, B] for each client, such as [[0.5, 1], [0.5, -1]]")
        self.num_clients, self.dim = len(pairs), dim
        self.a, self.b = torch.tensor(pairs, dtype=torch.float64).T
        columns = (column[:, None].expand(-1, dim) for column in (self.a, self.b))
        self.train_dataset = tensors(*columns, torch.zeros(self.num_clients, dtype=torch.float64))
        self.client_indices = blocks(self.num_clients, 1)

    def optimum(self, weights: Sequence[float] | Tensor | None = None) -> Tensor:
        """The optimum x* [d], with x*_j = -sum_i w_i B_i / (2 sum_i w_i A_i) for importance weights w (None: uniform).

        Raises BadValue(pairs) if sum_i w_i A_i <= 0: there is no minimum.
        """
        w = client_weights(weights, self.num_clients)
        curvature = float(w @ self.a)
        if curvature <= 0:
            raise BadValue("pairs", got=self.a.tolist(), need="A of positive mean: F has no minimum")
        return torch.full((self.dim,), -float(w @ self.b) / (2 * curvature), dtype=torch.float64)


@DATA.register("dense_quadratics")
class DenseQuadratics(DataSource):
    """Random, strongly convex quadratics f_i(x) = x^T H_i x / 2 - b_i^T x, for the model `dense_quadratic`.

    H_i = Q_i diag(s) Q_i^T, with a random rotation Q_i and s spaced geometrically from 1/condition to 1; b_i ~ N(0,
    spread^2 I_d). Samples are (H_i [d, d], b_i [d]).
    spread: the standard deviation of the entries of b_i; the clients' minima H_i^-1 b_i are proportional to it.
    """

    def __init__(
        self,
        num_clients: Count = 10,
        dim: Count = 10,
        condition: Annotated[float, Ge(1), Doc("the largest over the smallest eigenvalue of every H_i")] = 10.0,
        spread: float = 1.0,
        seed: int = 0,
    ):
        self.num_clients, self.dim = num_clients, dim
        draw = keyed(seed, "data/dense_quadratics")
        q, _ = np.linalg.qr(draw.standard_normal((num_clients, dim, dim)))
        eigenvalues = np.geomspace(1.0 / condition, 1.0, dim)
        h = (q * eigenvalues) @ q.transpose(0, 2, 1)
        self.h = torch.from_numpy((h + h.transpose(0, 2, 1)) / 2)  # symmetric to the last bit
        self.b = torch.from_numpy(spread * draw.standard_normal((num_clients, dim)))
        self.train_dataset = tensors(self.h, self.b)
        self.client_indices = blocks(num_clients, 1)

    def optimum(self, weights: Sequence[float] | Tensor | None = None) -> Tensor:
        """The optimum x* [d], from (sum_i w_i H_i) x* = sum_i w_i b_i for importance weights w (None: uniform)."""
        w = client_weights(weights, self.num_clients)
        x: Tensor = torch.linalg.solve(torch.einsum("i,ijk->jk", w, self.h), w @ self.b)
        return x


@DATA.register("ridge", paper="FOCUS fig. 4")
class Ridge(DataSource):
    """Ridge regression on linear measurements: f_i(x) = sum_k (a_ik.x - b_ik)^2 + lam |x|^2.

    For the model `ridge`. Samples are (row a [d], measurement b), with a = u z and b = a.x_o + noise e. Each sample has
    its own u ~ U(0.5, 1), z ~ N(0, I_d) and e ~ N(0, 1); all samples of all clients share one x_o ~ N(0, I_d). Samples
    are stored client by client.
    noise: the standard deviation of the measurements' errors.
    lam: changes the optimum, not the samples; it is also the default of the model's `lam`.
    """

    def __init__(
        self,
        num_clients: Count = 16,
        rows_per_client: Count = 100,
        dim: Count = 100,
        lam: Annotated[float, Ge(0)] = 0.01,
        noise: float = 0.1,
        seed: int = 0,
    ):
        self.num_clients, self.rows_per_client, self.dim, self.lam = num_clients, rows_per_client, dim, lam
        draw = keyed(seed, "data/ridge")
        n = num_clients * rows_per_client
        a = draw.uniform(0.5, 1.0, size=(n, 1)) * draw.standard_normal((n, dim))
        x_o = draw.standard_normal(dim)
        b = a @ x_o + noise * draw.standard_normal(n)
        self.a, self.b = torch.from_numpy(a), torch.from_numpy(b)
        self.train_dataset = tensors(self.a, self.b)
        self.client_indices = blocks(num_clients, rows_per_client)

    def optimum(self, weights: Sequence[float] | Tensor | None = None) -> Tensor:
        """The optimum x* [d], from (sum_i w_i A_i^T A_i + lam I) x* = sum_i w_i A_i^T b_i.

        w: importance weights (None: uniform); A_i, b_i: the rows and measurements of client i. Raises BadValue(lam) if
        lam is 0 and the rows do not determine x*.
        """
        w = client_weights(weights, self.num_clients)
        scaled = self.a * w.repeat_interleave(self.rows_per_client)[:, None]
        normal = scaled.T @ self.a + self.lam * torch.eye(self.dim, dtype=torch.float64)
        factor, info = torch.linalg.cholesky_ex(normal)
        if info:
            raise BadValue("lam", got=self.lam, need="> 0", hint="the rows alone do not determine the optimum")
        return torch.cholesky_solve((scaled.T @ self.b)[:, None], factor).flatten()


@DATA.register("logistic_regression_synthetic", paper="Li 2020 (FedProx)")
class LogisticRegressionSynthetic(DataSource):
    """Synthetic(alpha, beta): labels y = argmax(W_i x + b_i), where client i has its own W_i, b_i and inputs x [d].

    For the model `logistic`. Entries of W_i, b_i ~ N(u_i, 1), u_i ~ N(0, alpha); x ~ N(v_i, S), S diagonal with
    S_jj = j^-1.2, entries of v_i ~ N(B_i, 1), B_i ~ N(0, beta) (alpha, beta: variances). Inputs are float64; every
    client has the same number of samples.
    rows_per_client: training samples per client; the test set has as many.
    """

    in_shape: tuple[int, ...]

    def __init__(
        self,
        num_clients: Count = 10,
        rows_per_client: Count = 50,
        dim: Count = 60,
        num_classes: Count = 10,
        alpha: Annotated[float, Ge(0), Doc("the variance of the u_i: how much models differ")] = 1.0,
        beta: Annotated[float, Ge(0), Doc("the variance of the B_i: how much inputs differ")] = 1.0,
        seed: int = 0,
    ):
        self.num_clients, self.in_shape, self.num_classes = num_clients, (dim,), num_classes
        deviation = np.arange(1, dim + 1) ** -0.6
        x, y = [], []
        for i in range(num_clients):
            draw = keyed(seed, "data/logistic_regression_synthetic", i)
            u, shift = np.sqrt(alpha) * draw.standard_normal(), np.sqrt(beta) * draw.standard_normal()
            w, b = u + draw.standard_normal((dim, num_classes)), u + draw.standard_normal(num_classes)
            v = shift + draw.standard_normal(dim)
            inputs = v + deviation * draw.standard_normal((2, rows_per_client, dim))  # train, test
            x.append(inputs)
            y.append((inputs @ w + b).argmax(axis=-1))
        (x_train, x_test), (y_train, y_test) = np.concatenate(x, axis=1), np.concatenate(y, axis=1)
        self.train_dataset = tensors(torch.from_numpy(x_train), torch.from_numpy(y_train))
        self.test_dataset = tensors(torch.from_numpy(x_test), torch.from_numpy(y_test))
        self.targets = torch.from_numpy(y_train)
        self.client_indices = blocks(num_clients, rows_per_client)
