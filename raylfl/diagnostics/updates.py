"""Metrics of the updates and models of a round: norms, diversity, distances."""

import torch
from torch import Tensor

from raylfl.core.algorithm import normalise
from raylfl.core.arrays import Floats
from raylfl.core.chunked_matrix import columns, norms
from raylfl.core.reduce import BLOCK, square_norms, weighted_sum


def update_metrics(mean: Tensor, squares: Floats, weights: Floats) -> dict[str, float]:
    """Metrics `update/norm` = |sum w_i U_i| and `update/diversity` = sqrt(sum w_i |U_i|^2 / |sum w_i U_i|^2) >= 1.

    U_i: the R received updates; w_i: the clients' weights, normalised to sum 1. The diversity is eq. (3) of FedAWARE
    [4]; it is left out if the mean update is exactly 0. mean: sum w_i U_i [d]. squares: |U_i|^2 [R]. weights: the
    weights before they are normalised [R].
    """
    mean_square = float((torch.from_numpy(squares) * torch.from_numpy(normalise(weights))).sum())
    mean_norm = float(torch.from_numpy(square_norms(mean[None])).sqrt())
    metrics = {"update/norm": mean_norm}
    if mean_norm > 0:
        metrics["update/diversity"] = max(1.0, (mean_square / mean_norm**2) ** 0.5)
    return metrics


def drift(updates: Tensor, weights: Floats) -> float:
    """Metric `update/drift` = sum_i w_i |x_i - x|^2, the drift of the received clients (FedAWARE [4], eq. (4)).

    x: the broadcast model; x_i: client i's parameters after its local steps; w_i: its weight, normalised to sum 1.
    updates: U_i = x - x_i [R, d]. weights: the weights before they are normalised [R].
    """
    squares = norms(updates, torch.float64) ** 2
    return float(torch.from_numpy(normalise(weights)).to(squares) @ squares)


def consensus_error(updates: Tensor, weights: Floats) -> float:
    """Metric `update/consensus` = sum_i w_i |x_i - sum_j w_j x_j|^2 over the received clients (FOCUS [1], eq. (55)).

    Symbols and arguments are those of `drift`.
    """
    w, squares = normalise(weights), torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
    for start in range(0, updates.shape[1], BLOCK):
        block = columns(updates, slice(start, start + BLOCK))
        away = block - weighted_sum(block, w)
        squares += torch.linalg.vector_norm(away, dim=1, dtype=torch.float64) ** 2
    return float(torch.from_numpy(w).to(squares) @ squares)


def distance_metrics(x: Tensor, optimum: Tensor) -> dict[str, float]:
    """Metrics `global/distance` = |x - x*| / |x*| (|x - x*| if x* = 0) and `global/distance_abs` = |x - x*|.

    x: the parameters [d]. optimum: the minimiser x* [d]. The norms are computed in float64.
    """
    absolute = float(torch.linalg.vector_norm(x.double() - optimum.double()))
    scale = float(torch.linalg.vector_norm(optimum.double()))
    return {"global/distance": absolute / scale if scale > 0 else absolute, "global/distance_abs": absolute}
