"""Ridge regression over clients, the problem of FOCUS (Ying, Li & Yang, NeurIPS 2025), fig. 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from raylfl.components.options import Ge
from raylfl.core.keyed import keyed
from raylfl.data import DATA
from raylfl.data.base import Count, DataSource, blocks, client_weights, tensors
from raylfl.errors import BadValue


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
