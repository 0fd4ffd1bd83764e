"""SFL [2] (Li & Lyu, NeurIPS 2023): learning rates, clipping, local steps; tables 7 and 10, figures 2 and 3.

PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from raylfl.report.derived import Stat, last_k
from raylfl.report.tables import Column, ReportTable
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.ledger import Row
from papers.run_cache import RunCache
from papers.setting import Setting
from papers.sfl_cells import (
    CHOICES,
    CLIP,
    GRID,
    METHODS,
    SMOKE_GRID,
    VARIANTS,
    VGG,
    Cell,
    cells,
    missing,
    runs_of,
    whole,
    with_variants,
)
from papers.sfl_long import accuracy, clipping_claims
from papers.sfl_numbers import TABLE7, TABLE10
from papers.texts import ACCURACY, accuracy_text, published

ROUNDS, LAST = 1000, 40
Sweep = Mapping[float, Stat]  # learning rate (or local steps) -> accuracy


def published_sweep(text: str, method: str) -> dict[float, Stat]:
    """Learning rate -> published accuracy, from the four numbers of a row of table 7 or 10.

    text: the row. method: `PFL` or `SFL`; the keys are the four learning rates that the paper tried for it.
    """
    return {lr: published(value) for lr, value in zip(GRID[method], text.split(), strict=True)}


def best(sweep: Sweep) -> float:
    """The learning rate with the highest accuracy, the first one if several are equal.

    A learning rate that diverged is never the best if another did not.
    """
    return max(sweep, key=lambda lr: sweep[lr].mean if np.isfinite(sweep[lr].mean) else -1.0)


class Rates(PaperResult):
    """A table of accuracies at every learning rate of the grid, on one seed.

    stem: its file name.
    """

    scales, choices, shares = SCALES, CHOICES, "sfl/images"
    stem: ClassVar[str]

    @abstractmethod
    def numbers(self, scale: str) -> dict[Cell, dict[float, Stat]]:
        """Cell -> learning rate -> published accuracy, for the cells that are run at this scale, `smoke` or `paper`."""

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        theirs = {cell: numbers for cell, numbers in self.numbers(cache.scale).items() if cell.chosen(cache.only)}
        rounds, last = cache.pick((100, 20), (ROUNDS, LAST))
        rates = {cell: [lr for lr in GRID[cell.method] if cache.only.keeps(lr=lr)] for cell in theirs}
        ours = {
            cell: {lr: last_k(group, ACCURACY, last) for lr, group in own.items()}
            for cell, own in runs_of(cache, rates, rounds).items()
        }
        panels: dict[str, dict[str, tuple[Sweep, Sweep]]] = {}
        for cell, sweep in ours.items():
            panels.setdefault(self.heading(cell), {})[cell.method] = (sweep, theirs[cell])
        figure = draw.sweeps(panels, draw.styles(METHODS), ACCURACY, "learning rate")
        whole = {cell: sweep for cell, sweep in ours.items() if len(sweep) == len(GRID[cell.method])}
        claims = self.claims(whole, theirs) if whole else []
        return Findings([self.table(ours, theirs, last)], claims, {self.stem: figure})

    def heading(self, cell: Cell) -> str:
        """The heading of the cell's panel, which has both methods."""
        return f"{cell.task}, {cell.row}"

    def claims(self, ours: Mapping[Cell, Sweep], theirs: Mapping[Cell, Sweep]) -> list[Claim]:
        """The claims of Sec. 4.2 about the best learning rates of SFL and PFL (parallel: FedAvg).

        In cells with both methods SFL's best rate is not above PFL's. Each best rate is the paper's, or next to it on
        the grid. ours, theirs: cell -> learning rate -> accuracy; ours only for cells with the whole grid.
        """
        both: dict[str, dict[str, float]] = {self.heading(cell): {} for cell in ours}
        for cell, sweep in ours.items():
            both[self.heading(cell)][cell.method] = best(sweep)
        smaller = [rates["SFL"] <= rates["PFL"] for rates in both.values() if len(rates) == 2]
        near = [_apart(cell, best(ours[cell]), best(theirs[cell])) <= 1 for cell in ours]
        order = Claim(
            "the best learning rate of SFL is not above that of PFL",
            all(smaller),
            f"in {sum(smaller)} of {len(smaller)}",
        )
        return [
            *([order] if smaller else []),
            Claim(
                "the best learning rates are the paper's, or next to them on the grid",
                all(near),
                f"in {sum(near)} of {len(near)}",
            ),
        ]

    def table(self, ours: Mapping[Cell, Sweep], theirs: Mapping[Cell, Sweep], last: int) -> ReportTable:
        """The table with one row per cell and one column per learning rate, with our and the published numbers.

        ours, theirs: cell -> learning rate -> accuracy; last: the number of last rounds averaged.
        """
        rates = sorted({lr for sweep in ours.values() for lr in sweep})
        rows = [
            {"block": self.heading(cell), "method": cell.method}
            | {f"{lr:g}": (sweep[lr], theirs[cell][lr]) for lr in sweep}
            for cell, sweep in ours.items()
        ]
        columns = [Column("method", "method")]
        columns += [Column(f"{lr:g}", f"lr {lr:g}", _both, None, True) for lr in rates]
        caption = f"Test accuracy in %, ours | published: mean over the last {last} rounds of one seed."
        return ReportTable(self.stem, caption, columns, rows)


def _apart(cell: Cell, one: float, other: float) -> int:
    grid = GRID[cell.method]
    return abs(grid.index(one) - grid.index(other))


def _both(pair: tuple[Stat, Stat]) -> str:
    ours, theirs = pair
    return f"{accuracy(ours)} | {accuracy_text(theirs)}"


@EXPERIMENTS.register("sfl/table10", paper="SFL [2] table 10, fig. 11")
class Table10(Rates):
    """Grid search of learning rates for every data set and model, C classes per client and K local steps."""

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        from papers.sfl_ledger import cell_of

        found = cell_of(config)
        return found if found and found["task"] in with_variants(self.tasks) else None

    def cell_setting(self, cell: Mapping[str, Any], scale: str) -> Setting | None:
        from papers.sfl_ledger import setting_of

        return setting_of(cell, self.numbers(scale), ROUNDS, scale)

    def from_ledger(self, folder: Path) -> Findings:
        from papers.sfl_ledger import rate_findings

        return rate_findings(self.stem, folder)

    def whole(self) -> int:
        return whole(self.numbers("paper"))

    def missing(self, rows: Sequence[Row]) -> list[str]:
        return missing(self.numbers("paper"), rows)

    stem = "table10"
    tasks: ClassVar[Sequence[str]] = tuple(dict.fromkeys(task for task, _, _ in TABLE10))
    smoke_tasks: ClassVar[Sequence[str]] = ("MNIST, logistic", "MNIST, MLP")

    def numbers(self, scale: str) -> dict[Cell, dict[float, Stat]]:
        smoke = scale == "smoke"
        tasks, steps = (self.smoke_tasks, (5, 20)) if smoke else (with_variants(self.tasks), (5, 20, 50))
        rows = {place: numbers for place, numbers in TABLE10.items() if place[2] in steps}
        return {
            Cell(task, c, k, method, CLIP[method]): published_sweep(numbers[place], method)
            for task in tasks
            for (own, c, k), numbers in rows.items()
            if own == VARIANTS.get(task, task)
            for place, method in enumerate(METHODS)
        }


@EXPERIMENTS.register("sfl/fig2", paper="SFL [2] fig. 2")
class Fig2(Table10):
    """Learning rates of VGG-9 on CIFAR-10 (its rows of table 10)."""

    stem, tasks, smoke_tasks = "fig2", (VGG,), (VGG,)

    def claims(self, ours: Mapping[Cell, Sweep], theirs: Mapping[Cell, Sweep]) -> list[Claim]:
        """The claims of `Rates`, and observation (ii) of Sec. 4.2: SFL's best learning rate falls with heterogeneity.

        ours, theirs: cell -> learning rate -> accuracy.
        """
        rates: dict[int, dict[int, float]] = {}
        for cell, sweep in ours.items():
            if cell.method == "SFL":
                rates.setdefault(cell.steps, {})[cell.classes] = best(sweep)
        both = {k: own for k, own in rates.items() if len(own) == 2}
        falls = all(own[1] <= own[2] for own in both.values()) and any(own[1] < own[2] for own in both.values())
        told = ", ".join(f"K={k}: {own[1]:g} at C=1, {own[2]:g} at C=2" for k, own in both.items())
        extra = [Claim("SFL's best learning rate is smaller on more heterogeneous data", falls, told)] if both else []
        return [*super().claims(ours, theirs), *extra]


@EXPERIMENTS.register("sfl/table7", paper="SFL [2] table 7")
class Table7(Rates):
    """Gradient clipping: VGG-9 on CIFAR-10 with four max norms at every learning rate.

    A row of the table has a max norm of PFL (parallel: FedAvg) and a larger one of SFL, or no clipping for both.
    """

    stem = "table7"

    def numbers(self, scale: str) -> dict[Cell, dict[float, Stat]]:
        steps = (5,) if scale == "smoke" else (5, 20, 50)
        return {
            Cell(VGG, c, k, method, clip[place]): published_sweep(numbers[place], method)
            for (c, k), rows in TABLE7.items()
            if k in steps
            for clip, numbers in rows.items()
            for place, method in enumerate(METHODS)
        }

    def heading(self, cell: Cell) -> str:
        norms = {"PFL": (None, 20, 10, 5), "SFL": (None, 100, 50, 20)}[cell.method]  # as paired in table 7
        words = ("no clipping", "loose", "medium", "tight")
        return f"{cell.row}, {words[norms.index(cell.clip)]}"

    def claims(self, ours: Mapping[Cell, Sweep], theirs: Mapping[Cell, Sweep]) -> list[Claim]:
        """The claims of `Rates`, and the observations of App. G.2 on gradient clipping.

        ours, theirs: cell -> learning rate -> accuracy.
        """
        rates: dict[tuple[int, int, str], dict[int | None, float]] = {}
        for cell, sweep in ours.items():
            rates.setdefault((cell.classes, cell.steps, cell.method), {})[cell.clip] = best(sweep)
        loose_first = [[own[norm] for norm in sorted(own, key=lambda n: -(n or np.inf))] for own in rates.values()]
        larger = [all(b >= a for a, b in pairwise(own)) for own in loose_first]
        told = f"in {sum(larger)} of {len(larger)} settings"
        claims = [*super().claims(ours, theirs), *clipping_claims({c: s[best(s)].mean for c, s in ours.items()})]
        return [*claims, Claim("a smaller max norm never has a smaller best learning rate (G.2, 4)", all(larger), told)]


@EXPERIMENTS.register("sfl/fig3", paper="SFL [2] fig. 3")
class Fig3(PaperResult):
    """Effect of local steps: VGG-9 on CIFAR-10 at the best learning rate of each K.

    K: the number of local steps.
    """

    scales = SCALES
    steps: ClassVar[Sequence[int]] = (1, 2, 5, 10, 20)  # the paper names 1, 5 and 10

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        rounds, last = cache.pick((100, 20), (ROUNDS, LAST))
        steps = cache.pick((1, 5, 10), self.steps)
        grid = cache.pick(SMOKE_GRID, GRID)
        rates = {cell: grid[cell.method] for cell in cells([VGG], steps)}
        panels: dict[str, dict[str, tuple[dict[float, Stat], dict[float, Stat]]]] = {}
        for cell, own in runs_of(cache, rates, rounds).items():
            sweep = {lr: last_k(group, ACCURACY, last) for lr, group in own.items()}
            curve = panels.setdefault(f"C={cell.classes}", {}).setdefault(cell.method, ({}, {}))[0]
            curve[cell.steps] = sweep[best(sweep)]
        figure = draw.sweeps(panels, draw.styles(METHODS), ACCURACY, "local steps K")
        claims = []
        for heading, lines in panels.items():
            sfl = {k: stat.mean for k, stat in lines["SFL"][0].items()}
            told = ", ".join(f"K={k:g} {100 * mean:.1f}" for k, mean in sfl.items())
            claims += [
                Claim(f"{heading}: SFL improves from K=1 to K=5", sfl[5] > sfl[1], told),
                Claim(f"{heading}: SFL deteriorates from K=5 to K=10", sfl[10] < sfl[5], told),
            ]
        return Findings([self._table(panels, last)], claims, {"fig3": figure}, [f"clipping {CLIP}"])

    @staticmethod
    def _table(panels: Mapping[str, Mapping[str, tuple[Sweep, Sweep]]], last: int) -> ReportTable:
        rows = [
            {"block": heading, "method": method} | {f"K={k:g}": stat for k, stat in ours.items()}
            for heading, lines in panels.items()
            for method, (ours, _) in lines.items()
        ]
        names = dict.fromkeys(key for row in rows for key in row if key.startswith("K="))
        columns = [Column("method", "method")]
        columns += [Column(key, key, accuracy_text, None, True) for key in names]
        caption = f"Test accuracy in % over the last {last} rounds of one seed, best learning rate of each K."
        return ReportTable("fig3", caption, columns, rows)
