"""The cells of SFL's tables of image classification ([2], tables 3, 7, 10 and 11), and the published numbers.

PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from papers.grid import Point
from papers.texts import stat_of, table_of
from raylfl.report.derived import Stat

METHODS = {"PFL": "fedavg", "SFL": "sfl"}
NORMS = [dict(zip(METHODS, pair, strict=True)) for pair in ((None, None), (20, 100), (10, 50), (5, 20))]  # table 7
CLIP = NORMS[2]
GRID = {"PFL": (0.01, 0.03, 0.1, 0.3), "SFL": (0.003, 0.01, 0.03, 0.1)}
SMOKE_GRID = {"PFL": (0.1, 0.3), "SFL": (0.03, 0.1)}
SEARCH_SEED = 1234  # App. G.3; one of the three seeds of the tables, so that its runs are reused there
CLOSE = 0.03  # App. G.3: learning rates within 3 points of the best are tried in the long run
VGG = "CIFAR-10, VGG-9"
TASKS = {  # data and model
    "MNIST, logistic": ("mnist", "logistic"),
    "MNIST, MLP": ("mnist", "mlp"),
    "MNIST, MLP without dropout": ("mnist", "mlp"),
    "MNIST, LeNet-5": ("mnist", "lenet5"),
    "FMNIST, LeNet-5": ("fashion_mnist", "lenet5"),
    "FMNIST, CNN": ("fashion_mnist", "cnn_sfl"),
    VGG: ("cifar10", "vgg9"),
    "CIFAR-10, ResNet-18": ("cifar10", "resnet18"),
    "CINIC-10, VGG-9": ("cinic10", "vgg9"),
    "CINIC-10, ResNet-18": ("cinic10", "resnet18"),
}
OPTIONS = {"MNIST, MLP": {"model.init_args.dropout": 0.5}}  # in the authors' code; the paper does not mention it
# the network as printed in the paper -> the published row, which comes from the paper's code
VARIANTS = {"MNIST, MLP without dropout": "MNIST, MLP"}
SMOKE_MODEL: dict[str, dict[str, Any]] = {  # the paper's networks on 8x8 digits; deep ones are narrow
    "logistic": {},
    "MLP": {},
    "LeNet-5": {"data.init_args.upscale": 28},
    "CNN": {},
    "VGG-9": {"data.init_args.upscale": 32, "model.init_args.width": 8},
    "ResNet-18": {"model.init_args.width": 8},
}
SHORT, LONG = (1000, 40), (4000, 100)  # rounds, averaged last rounds
CLIENTS = {"eval.participants": True, "eval.random_clients": 10}  # what figures 12 to 15 measure besides
Sweep = Mapping[float, Stat]  # learning rate (or local steps) -> accuracy
SYMBOLS = "C: classes per client, K: local steps"


def published_best() -> dict[tuple[str, int, int, str], Stat]:
    """(task, C, K, method) -> accuracy in tables 3 and 11: mean ± std over 3 seeds and the last rounds."""
    return {
        (row["task"], c, k, row["method"]): stat_of(row[f"C={c} K={k}"])
        for row in table_of("sfl_best")
        for c in (1, 2)
        for k in (5, 20, 50)
    }


def published_rates() -> dict[tuple[str, int, int, str, int | None], dict[float, Stat]]:
    """(task, C, K, method, max norm) -> learning rate -> accuracy in tables 7 and 10: one seed, 1000 rounds."""
    return {
        (row["task"], int(row["classes"]), int(row["steps"]), method, norm(row[f"{method} clip"])): {
            lr: stat_of(text) for lr, text in zip(GRID[method], row[method].split(), strict=True)
        }
        for row in table_of("sfl_rates")
        for method in METHODS
    }


def norm(text: str) -> int | None:
    return None if text == "none" else int(text)


def best_rate(sweep: Sweep) -> float:
    """The learning rate with the highest accuracy; the first of equal ones; a diverged one only if all are."""
    return max(sweep, key=lambda lr: sweep[lr].mean if np.isfinite(sweep[lr].mean) else -1.0)


def row_name(cell: Point) -> str:
    return f"C={cell.classes}, K={cell.steps}"
