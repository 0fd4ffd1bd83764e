"""SFL [2] (Li & Lyu, NeurIPS 2023): image classification, tables 3 and 11.

PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from raylfl.report.derived import Stat, last_k, score
from raylfl.report.tables import Column, ReportTable
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.ledger import Row
from papers.run_cache import RunCache
from papers.setting import Setting
from papers.sfl_cells import (
    CHOICES,
    CLIP,
    CLOSE,
    GRID,
    METHODS,
    SEEDS,
    SMOKE_GRID,
    SYMBOLS,
    VARIANTS,
    Cell,
    cells,
    missing,
    runs_of,
    whole,
    with_variants,
)
from papers.sfl_numbers import TABLE3, TABLE11
from papers.texts import ACCURACY, accuracy_text, published


def best_rates(
    cache: RunCache, grids: Mapping[Cell, Sequence[float]], stages: Sequence[tuple[int, int]]
) -> dict[Cell, float]:
    """The best learning rate of each cell, by the mean accuracy over the last rounds on one seed (SFL, App. G.3).

    grids: the learning rates tried for each cell. stages: (rounds, number of last rounds averaged) of each stage of the
    search. After every stage except the last, all rates within CLOSE of the best remain.
    """
    left = {cell: list(rates) for cell, rates in grids.items()}
    for rounds, last in stages:
        open_ones = {cell: rates for cell, rates in left.items() if len(rates) > 1}
        if not open_ones:
            break
        close = 0.0 if (rounds, last) == stages[-1] else CLOSE
        for cell, groups in runs_of(cache, open_ones, rounds).items():
            scores = {lr: score(group, ACCURACY, last) for lr, group in groups.items()}
            left[cell] = [lr for lr, value in scores.items() if value >= max(scores.values()) - close]
    return {cell: rates[0] for cell, rates in left.items()}


class Accuracies(PaperResult):
    """A table of PFL (parallel: FedAvg) and SFL at their best learning rates: means over seeds and last rounds.

    numbers: task -> method -> published accuracies. stages: (rounds, number of last rounds averaged) of each stage of
    the search; the final runs have those of the last stage. stem: file name of the table.
    """

    scales, choices, shares = SCALES, CHOICES, "sfl/images"
    numbers: ClassVar[dict[str, dict[str, str]]]
    stages: ClassVar[Sequence[tuple[int, int]]]
    smoke_tasks: ClassVar[Sequence[str]]
    stem: ClassVar[str]

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        tasks, steps = cache.pick(self.smoke_tasks, with_variants(self.numbers)), cache.pick((5,), (5, 20, 50))
        stages, grid = cache.pick([(100, 20)], self.stages), cache.pick(SMOKE_GRID, GRID)
        grids = {
            cell: [lr for lr in grid[cell.method] if cache.only.keeps(lr=lr)]
            for cell in cells(tasks, steps)
            if cell.chosen(cache.only)
        }
        rates = best_rates(cache, {cell: rates for cell, rates in grids.items() if rates}, stages)
        rounds, last = stages[-1]
        runs = runs_of(cache, {cell: [lr] for cell, lr in rates.items()}, rounds, cache.pick(SEEDS[:2], SEEDS))
        ours = {cell: last_k(own[rates[cell]], ACCURACY, last) for cell, own in runs.items()}
        theirs = self.published()
        panels: dict[str, dict[str, dict[str, tuple[Stat, Stat]]]] = {}
        for cell in ours:
            methods = panels.setdefault(cell.task, {}).setdefault(cell.row, {})
            methods[cell.method] = (ours[cell], theirs[cell])
        figure = draw.beside(panels, draw.styles(METHODS))
        whole = {cell: stat for cell, stat in ours.items() if len(grids[cell]) == len(grid[cell.method])}
        return Findings([self._table(ours, theirs, rates, last)], self.claims(whole, theirs), {self.stem: figure})

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        from papers.sfl_ledger import cell_of

        found = cell_of(config)
        return found if found and VARIANTS.get(found["task"], found["task"]) in self.numbers else None

    def cell_setting(self, cell: Mapping[str, Any], scale: str) -> Setting | None:
        """The setting of a cell in the final runs."""
        from papers.sfl_ledger import setting_of

        return setting_of(cell, self.published(), self.stages[-1][0], scale)

    def from_ledger(self, folder: Path) -> Findings:
        from papers.sfl_ledger import best_findings

        return best_findings(self.stem, folder, self.published(), self.stages[-1][1])

    def whole(self) -> int:
        return whole(self.published())

    def missing(self, rows: Sequence[Row]) -> list[str]:
        return missing(self.published(), rows)

    def published(self) -> dict[Cell, Stat]:
        """Cell of the table -> the paper's accuracy."""
        out = {}
        numbers = self.numbers | {task: self.numbers[of] for task, of in VARIANTS.items() if of in self.numbers}
        for task, methods in numbers.items():
            for method, text in methods.items():
                places = [(c, k) for c in (1, 2) for k in (5, 20, 50)]
                for (c, k), value in zip(places, text.split(), strict=True):
                    out[Cell(task, c, k, method, CLIP[method])] = published(value)
        return out

    def claims(self, ours: Mapping[Cell, Stat], theirs: Mapping[Cell, Stat]) -> list[Claim]:
        """The claims of Sec. 4.2 about the better of the two methods, SFL and PFL (parallel: FedAvg).

        With one class per client SFL is better in every cell in which it is better in the paper. In all cells the
        better method is the paper's. ours, theirs: cell -> our and the paper's accuracy, ours for cells with the whole
        grid of learning rates.
        """
        pairs = [(cell, sfl) for cell in ours if cell.method == "PFL" and (sfl := _sfl(cell)) in ours]
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
    ) -> ReportTable:
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for cell, stat in ours.items():
            row = rows.setdefault((cell.task, cell.row), {"block": cell.task, "row": cell.row})
            row |= {f"{cell.method} lr": rates[cell], f"{cell.method} ours": stat}
            row[f"{cell.method} published"] = theirs[cell]
        columns = [Column("row", "classes, steps")]
        for method in METHODS:
            columns += [
                Column(f"{method} lr", f"{method} lr", lambda v: f"{v:g}", None, True),
                Column(f"{method} ours", f"{method} ours", accuracy_text, None, True),
                Column(f"{method} published", "published", accuracy_text, None, True),
            ]
        caption = f"Test accuracy in %, mean ± std over seeds and the last {last} rounds; {SYMBOLS}."
        return ReportTable(self.stem, caption, columns, list(rows.values()))


def _sfl(cell: Cell) -> Cell:
    return replace(cell, method="SFL", clip=CLIP["SFL"])


def _points(stat: Stat) -> float:
    return 100 * stat.mean


@EXPERIMENTS.register("sfl/table3", paper="SFL [2] table 3")
class Table3(Accuracies):
    """PFL (parallel: FedAvg) and SFL with VGG-9 and ResNet-18 on CIFAR-10 and CINIC-10."""

    numbers, stages, stem = TABLE3, ((1000, 40), (4000, 100)), "table3"
    smoke_tasks = ("CIFAR-10, VGG-9", "CIFAR-10, ResNet-18")


@EXPERIMENTS.register("sfl/table11", paper="SFL [2] table 11")
class Table11(Accuracies):
    """PFL (parallel: FedAvg) and SFL with logistic regression, MLP, LeNet-5 and a CNN on MNIST and FashionMNIST."""

    numbers, stages, stem = TABLE11, ((1000, 40),), "table11"
    smoke_tasks = ("MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5")
