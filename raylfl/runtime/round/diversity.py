"""Gradient diversity over all clients: FedAWARE, Definitions 3.1 and 3.2."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Floats
from raylfl.core.client_rows import empty_matrix
from raylfl.core.threads import one_thread
from raylfl.solvers.simplex import min_norm_point


def diversity_metrics(rows: Sequence[Tensor], weights: Floats) -> dict[str, float]:
    """The metrics of gradient diversity over N clients (FedAWARE).

    rows: w_i grad f_i(x) [d] of each client i, where f_i is its local objective; weights: the importance weights w_i
    [N], sum 1. Clients of weight 0 are ignored.

    global/diversity            D(x) = sqrt(sum_i w_i |grad f_i|^2) / |sum_i w_i grad f_i| (eq. 3)
    global/surrogate_diversity  D's numerator over |sum_i l_i grad f_i| (eq. 6)
    global/surrogate_chi2       sum_i (l_i / w_i)^2 (Theorem 4.1)

    The weights l_i >= 0, sum 1, minimise |sum_i l_i grad f_i| (eq. 8). A metric whose denominator is (nearly) 0 is left
    out.
    """
    counted = weights > 0
    w = torch.from_numpy(weights[counted])
    gradients = empty_matrix(len(w), len(rows[0]), w)
    for k, i in enumerate(np.flatnonzero(counted)):
        torch.div(rows[int(i)].double().cpu(), w[k], out=gradients[k])
    with one_thread():
        square = float(w @ torch.cat([gradient.square().sum(dim=1) for gradient in gradients.split(1)]))
    norm = float(torch.linalg.vector_norm(w @ gradients))
    simplex_weights = min_norm_point(gradients @ gradients.T).weights
    least = float(torch.linalg.vector_norm(torch.from_numpy(simplex_weights) @ gradients))
    metrics = {"global/surrogate_chi2": float(np.square(simplex_weights / weights[counted]).sum())}
    if norm > 0:
        metrics["global/diversity"] = max(1.0, square**0.5 / norm)
    if least > 1e-12 * square**0.5:
        metrics["global/surrogate_diversity"] = square**0.5 / least
    return metrics
