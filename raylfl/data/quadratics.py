"""Quadratics with known optima; each client has one sample, and the loss of this sample is its objective f_i."""

from __future__ import annotations

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
