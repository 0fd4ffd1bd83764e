"""Synthetic(alpha, beta) of FedProx (Li et al. 2020): data for classification, different in each client."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from raylfl.components.options import Doc, Ge
from raylfl.core.keyed import keyed
from raylfl.data import DATA
from raylfl.data.base import Count, DataSource, blocks, tensors


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
