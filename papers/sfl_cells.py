"""The cells of SFL's tables of image classification ([2], tables 3, 7, 10 and 11): settings, grids, variants.

PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raylfl.report.runs import Group
from papers.choice import Choice, plain
from papers.coverage import by_cell, listed
from papers.ledger import Row
from papers.run_cache import RunCache
from papers.setting import Setting, setting

METHODS = {"PFL": "fedavg", "SFL": "sfl"}
CLIP = {"PFL": 10, "SFL": 50}
GRID = {"PFL": (0.01, 0.03, 0.1, 0.3), "SFL": (0.003, 0.01, 0.03, 0.1)}
SMOKE_GRID = {"PFL": (0.1, 0.3), "SFL": (0.03, 0.1)}
SEARCH_SEED = 1234  # App. G.3; one of the three seeds of the tables, so that its runs are reused there
SEEDS = (SEARCH_SEED, 0, 1)
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
VARIANTS = {
    "MNIST, MLP without dropout": "MNIST, MLP"
}  # the network as printed in the paper -> the published row, which comes from the paper's code
CHOICES = ("task", "classes", "steps", "method", "lr", "seed")
SYMBOLS = "C: classes per client, K: local steps"
SMOKE_MODEL: dict[str, dict[str, Any]] = {  # the paper's networks on 8x8 digits; deep ones are narrow
    "logistic": {},
    "MLP": {},
    "LeNet-5": {"data.init_args.upscale": 28},
    "CNN": {},
    "VGG-9": {"data.init_args.upscale": 32, "model.init_args.width": 8},
    "ResNet-18": {"model.init_args.width": 8},
}


@dataclass(frozen=True)
class Cell:
    """A cell of SFL's tables of image classification.

    task: data set and model. classes: C, classes per client. steps: K, local steps. method: SFL or PFL (parallel:
    FedAvg). clip: the max norm of gradients, None for no clipping.
    """

    task: str
    classes: int
    steps: int
    method: str
    clip: int | None

    @property
    def row(self) -> str:
        return f"C={self.classes}, K={self.steps}"

    def chosen(self, only: Choice) -> bool:
        """Whether the selection from the command line, `only`, has this cell."""
        return only.keeps(task=self.task, classes=self.classes, steps=self.steps, method=self.method)

    def setting(self, lr: float, rounds: int, scale: str) -> Setting:
        """The setting of this cell with this learning rate and number of rounds, at this scale (`smoke` or `paper`)."""
        data, model = TASKS[self.task]
        bases = ["reproduce/sfl_images", f"data/{data}", f"model/{model}", f"reproduce/{scale}"]
        options = {
            "partition.classes": self.classes,
            "local.steps": self.steps,
            "local.lr": lr,
            "local.clip_norm": self.clip,
            "algorithm.name": METHODS[self.method],
            "rounds": rounds,
            **OPTIONS.get(self.task, {}),
        }
        if scale == "smoke":
            options |= {"partition.min_size": 2} | SMOKE_MODEL[VARIANTS.get(self.task, self.task).split(", ")[1]]
        elif self.task.startswith("CINIC"):
            options["num_clients"] = 1000
        return setting(f"{self.task}, {self.row}, {self.method}, lr {lr}, clip {self.clip}", bases, options)


def cells(tasks: Iterable[str], steps: Sequence[int]) -> list[Cell]:
    """All cells with these tasks and steps: one or two classes, both methods, the max norms of the paper's tables."""
    return [
        Cell(task, c, k, method, CLIP[method]) for task in tasks for c in (1, 2) for k in steps for method in METHODS
    ]


def runs_of(
    cache: RunCache, rates: Mapping[Cell, Iterable[float]], rounds: int, seeds: Sequence[int] = (SEARCH_SEED,)
) -> dict[Cell, dict[float, Group]]:
    """Cell -> learning rate -> runs of this many rounds, for the given learning rates of each cell."""
    return cache.table(
        {cell: {lr: cell.setting(lr, rounds, cache.scale) for lr in own} for cell, own in rates.items()}, seeds
    )


def with_variants(tasks: Iterable[str]) -> list[str]:
    """The tasks, each followed by its variant if it has one: the same task with the network as printed in the paper."""
    named = {of: variant for variant, of in VARIANTS.items()}
    return [name for task in tasks for name in (task, named.get(task)) if name is not None]


def whole(table: Iterable[Cell]) -> int:
    """The number of runs of a table: each cell at every learning rate, and at the best one on all seeds."""
    return sum(len(GRID[cell.method]) + len(SEEDS) - 1 for cell in table)


def missing(table: Iterable[Cell], rows: Sequence[Row]) -> list[str]:
    """What the ledger's rows lack: cells without a run, incomplete searches, and cells with one seed."""
    keys = ("task", "classes", "steps", "method")
    seeds, rates = by_cell(rows, *keys), by_cell(rows, *keys, "lr")
    tried = {place: sum(own[:-1] == place for own in rates) for place in seeds}
    parts: dict[str, dict[str, list[str]]] = {}
    for cell in table:
        place = tuple(plain(value) for value in (cell.task, cell.classes, cell.steps, cell.method))
        state = (
            "no run of"
            if place not in seeds
            else "not all learning rates of"
            if tried[place] < len(GRID[cell.method])
            else "one seed of"
            if len(seeds[place]) == 1
            else ""
        )
        parts.setdefault(state, {}).setdefault(cell.task, []).append(f"{cell.row} {cell.method}")
    parts.pop("", None)
    return [
        f"{state} {'; '.join(f'{task}: {listed(own)}' for task, own in found.items())}"
        for state, found in parts.items()
    ]
