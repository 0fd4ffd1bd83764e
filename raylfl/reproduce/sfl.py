"""SFL [2] (Li & Lyu, NeurIPS 2023): its image classification, tables 3, 7, 10 and 11, figures 2 and 3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from raylfl.report.derived import Stat, last_k, score
from raylfl.report.tables import Column, Table
from raylfl.report.wording import stat_text
from raylfl.reproduce.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult, published
from raylfl.reproduce.choice import Choice
from raylfl.reproduce.run_cache import RunCache
from raylfl.reproduce.setting import Setting, setting
from raylfl.reproduce.sfl_numbers import TABLE3, TABLE11

ACCURACY = "test/accuracy"
METHODS = {"PFL": "fedavg", "SFL": "sfl"}
CLIP = {"PFL": 10, "SFL": 50}
GRID = {"PFL": (0.01, 0.03, 0.1, 0.3), "SFL": (0.003, 0.01, 0.03, 0.1)}
SEARCH_SEED = 1234  # App. G.3; one of the three seeds of the tables, so that its runs are reused there
SEEDS = (SEARCH_SEED, 0, 1)
CLOSE = 0.03  # App. G.3: learning rates within 3 points of the best are tried in the long run
TASKS: dict[str, list[str]] = {
    "MNIST, logistic": ["data/mnist", "model/logistic"],
    "MNIST, MLP": ["data/mnist", "model/mlp"],
    "MNIST, MLP without dropout": ["data/mnist", "model/mlp"],
    "MNIST, LeNet-5": ["data/mnist", "model/lenet5"],
    "FMNIST, LeNet-5": ["data/fashion_mnist", "model/lenet5"],
    "FMNIST, CNN": ["data/fashion_mnist", "model/cnn_sfl"],
    "CIFAR-10, VGG-9": ["data/cifar10", "model/vgg9"],
    "CIFAR-10, ResNet-18": ["data/cifar10", "model/resnet18"],
    "CINIC-10, VGG-9": ["data/cinic10", "model/vgg9"],
    "CINIC-10, ResNet-18": ["data/cinic10", "model/resnet18"],
}
OPTIONS = {"MNIST, MLP": {"model.init_args.dropout": 0.5}}  # in the authors' code; the paper does not mention it
VARIANTS = {"MNIST, MLP without dropout": "MNIST, MLP"}  # as the paper prints it -> the published row, of its code
CHOICES = ("task", "classes", "steps", "method", "lr", "seed")
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
    """One entry of a table: data and model, C classes per client, K local steps, PFL or SFL, max norm."""

    task: str
    classes: int
    steps: int
    method: str
    clip: int | None

    @property
    def row(self) -> str:
        return f"C={self.classes}, K={self.steps}"

    def chosen(self, only: Choice) -> bool:
        """Whether `--only` selects this cell."""
        return only.keeps(task=self.task, classes=self.classes, steps=self.steps, method=self.method)

    def setting(self, lr: float, rounds: int, scale: str) -> Setting:
        """The setting of this cell with a learning rate."""
        bases = [
            "reproduce/sfl_images",
            *TASKS[self.task],
            *(["reproduce/smoke"] if scale == "smoke" else ["reproduce/paper"]),
        ]
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


def cells(tasks: Iterable[str], classes: Sequence[int], steps: Sequence[int]) -> list[Cell]:
    """The cells of all combinations, with the max norms of the paper's tables."""
    return [
        Cell(task, c, k, method, CLIP[method]) for task in tasks for c in classes for k in steps for method in METHODS
    ]


def with_variants(tasks: Iterable[str]) -> list[str]:
    """The tasks, each followed by its variant where it has one."""
    named = {of: variant for variant, of in VARIANTS.items()}
    return [name for task in tasks for name in (task, named.get(task)) if name is not None]


def best_rates(
    cache: RunCache, grids: Mapping[Cell, Sequence[float]], stages: Sequence[tuple[int, int]]
) -> dict[Cell, float]:
    """The best learning rate of each cell by its mean over the last rounds, on one seed (App. G.3).

    stages: (rounds, averaged last rounds) of each search; after every stage except the last, all rates within CLOSE of
    the best continue.
    """
    left = {cell: list(rates) for cell, rates in grids.items()}
    for rounds, last in stages:
        open_ones = [(cell, lr) for cell, rates in left.items() if len(rates) > 1 for lr in rates]
        groups = cache.groups([cell.setting(lr, rounds, cache.scale) for cell, lr in open_ones], [SEARCH_SEED])
        scores = {key: score(group, ACCURACY, last) for key, group in zip(open_ones, groups, strict=True)}
        for cell in dict.fromkeys(cell for cell, _ in open_ones):
            top = max(scores[cell, lr] for lr in left[cell])
            close = 0.0 if (rounds, last) == stages[-1] else CLOSE
            left[cell] = [lr for lr in left[cell] if scores[cell, lr] >= top - close]
    return {cell: rates[0] for cell, rates in left.items()}


class Accuracies(PaperResult):
    """PFL against SFL at their best learning rates: means over seeds and the last rounds."""

    scales, choices, shares = SCALES, CHOICES, "sfl/images"
    numbers: ClassVar[dict[str, dict[str, str]]]
    stages: ClassVar[Sequence[tuple[int, int]]]  # (rounds, averaged last rounds) of the searches and, last, of the runs
    smoke_tasks: ClassVar[Sequence[str]]
    smoke_grid: ClassVar[Mapping[str, Sequence[float]]] = {"PFL": (0.1, 0.3), "SFL": (0.03, 0.1)}
    stem: ClassVar[str]

    def run(self, cache: RunCache) -> Findings:
        from raylfl.reproduce import draw

        tasks, steps = cache.pick(self.smoke_tasks, with_variants(self.numbers)), cache.pick((5,), (5, 20, 50))
        stages, grid = cache.pick([(100, 20)], self.stages), cache.pick(self.smoke_grid, GRID)
        grids = {
            cell: [lr for lr in grid[cell.method] if cache.only.keeps(lr=lr)]
            for cell in cells(tasks, (1, 2), steps)
            if cell.chosen(cache.only)
        }
        rates = best_rates(cache, {cell: rates for cell, rates in grids.items() if rates}, stages)
        rounds, last = stages[-1]
        settings = [cell.setting(lr, rounds, cache.scale) for cell, lr in rates.items()]
        groups = cache.groups(settings, cache.pick(SEEDS[:2], SEEDS))
        ours = {cell: last_k(group, ACCURACY, last) for cell, group in zip(rates, groups, strict=True)}
        theirs = self.published()
        panels: dict[str, dict[str, dict[str, tuple[Stat, Stat]]]] = {}
        for cell in ours:
            methods = panels.setdefault(cell.task, {}).setdefault(cell.row, {})
            methods[cell.method] = (ours[cell], theirs[cell])
        figure = draw.beside(panels, draw.styles(METHODS), ACCURACY)
        return Findings([self._table(ours, theirs, rates, last)], self.claims(ours, theirs), {self.stem: figure})

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        from raylfl.reproduce.sfl_ledger import cell_of

        found = cell_of(config)
        return found if found and VARIANTS.get(found["task"], found["task"]) in self.numbers else None

    def from_ledger(self, folder: Path) -> Findings:
        from raylfl.reproduce.sfl_ledger import best_findings

        return best_findings(self.stem, folder, self.published(), self.stages[-1][1])

    def published(self) -> dict[Cell, Stat]:
        """The paper's table."""
        out = {}
        numbers = self.numbers | {task: self.numbers[of] for task, of in VARIANTS.items() if of in self.numbers}
        for task, methods in numbers.items():
            for method, text in methods.items():
                places = [(c, k) for c in (1, 2) for k in (5, 20, 50)]
                for (c, k), value in zip(places, text.split(), strict=True):
                    out[Cell(task, c, k, method, CLIP[method])] = published(value)
        return out

    def claims(self, ours: Mapping[Cell, Stat], theirs: Mapping[Cell, Stat]) -> list[Claim]:
        """The claims of Sec. 4.2: SFL is better on extremely heterogeneous data; the orders agree with the paper's."""
        pairs = [(cell, sfl) for cell in ours if cell.method == "PFL" and (sfl := _other(cell, "SFL")) in ours]
        if not pairs:
            return []
        lead = {pfl: _points(ours[sfl]) - _points(ours[pfl]) for pfl, sfl in pairs}
        published_lead = {pfl: _points(theirs[sfl]) - _points(theirs[pfl]) for pfl, sfl in pairs}
        extreme = {pfl: lead[pfl] for pfl in lead if pfl.classes == 1 and published_lead[pfl] > 0}
        agree = [pfl for pfl in lead if lead[pfl] * published_lead[pfl] > 0]
        told = ", ".join(f"{pfl.task}, K={pfl.steps}: {points:+.1f} points" for pfl, points in extreme.items())
        return [
            Claim("C=1: SFL is better wherever it is in the paper", all(v > 0 for v in extreme.values()), told),
            Claim(
                "the better method is the paper's in every entry",
                len(agree) == len(lead),
                f"in {len(agree)} of {len(lead)}",
            ),
        ]

    def _table(
        self, ours: Mapping[Cell, Stat], theirs: Mapping[Cell, Stat], rates: Mapping[Cell, float], last: int
    ) -> Table:
        rows = []
        for cell in dict.fromkeys(_other(cell, "PFL") for cell in ours):
            row: dict[str, Any] = {"block": cell.task, "row": cell.row}
            for own in (own for method in METHODS if (own := _other(cell, method)) in ours):
                method = own.method
                row |= {f"{method} lr": rates[own], f"{method} ours": ours[own]}
                row[f"{method} published"] = theirs[own]
            rows.append(row)
        columns = [Column("row", "clients, steps")]
        for method in METHODS:
            columns += [
                Column(f"{method} lr", f"{method} lr", lambda v: f"{v:g}", None, True),
                Column(f"{method} ours", f"{method} ours", _accuracy, None, True),
                Column(f"{method} published", "published", _accuracy, None, True),
            ]
        caption = f"Test accuracy in %, mean ± std over seeds and the last {last} rounds."
        return Table(self.stem, caption, columns, rows)


def _other(cell: Cell, method: str) -> Cell:
    return Cell(cell.task, cell.classes, cell.steps, method, CLIP[method])


def _points(stat: Stat) -> float:
    return 100 * stat.mean


def _accuracy(stat: Stat) -> str:
    return stat_text(stat, ACCURACY)


@EXPERIMENTS.register("sfl/table3", paper="SFL [2] table 3")
class Table3(Accuracies):
    """PFL and SFL with VGG-9 and ResNet-18 on CIFAR-10 and CINIC-10."""

    numbers, stages, stem = TABLE3, ((1000, 40), (4000, 100)), "table3"
    smoke_tasks = ("CIFAR-10, VGG-9", "CIFAR-10, ResNet-18")


@EXPERIMENTS.register("sfl/table11", paper="SFL [2] table 11")
class Table11(Accuracies):
    """PFL and SFL with logistic regression, MLP, LeNet-5 and a CNN on MNIST and FashionMNIST."""

    numbers, stages, stem = TABLE11, ((1000, 40),), "table11"
    smoke_tasks = ("MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5")
