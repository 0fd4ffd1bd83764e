"""FedAvg (McMahan, Moore, Ramage, Hampson & y Arcas, AISTATS 2017), table 1: rounds to a target accuracy.

The caption says "MNIST 2NN with E = 1" (E: local epochs); FedLab's replication has E = 5. As defined in sec. 3, the
learning rate is the best of a grid, for each cell, and a curve is the best test accuracy so far, interpolated linearly
between evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from papers.base import EXPERIMENTS, Claim, Findings
from papers.choice import plain
from papers.grid import Grid, Point, by, by_cell, join_names
from papers.ledger import Row
from papers.run_cache import RunCache
from papers.texts import ACCURACY, cost_or_dash, ratio_text, table_of
from raylfl.report.curves import log_axis
from raylfl.report.derived import Stat
from raylfl.report.runs import RunRecord
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import cost_text, count_text

KEYS = ("pixels", "partition", "fraction", "lr")  # of a cell
ROUNDS = "rounds to target"
PARTITIONS = {"IID": "iid", "non-IID": "shards"}
PIXELS: dict[str, dict[str, Any]] = {  # the paper does not say how it scales them
    "0..1": {"data.init_args.mean": [0.0], "data.init_args.std": [1.0]},
    "standardised": {},
}
RATES = (0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0)  # 10^(k/3), the coarser of the paper's grids
# partition -> C -> published rounds to the target
PAPER, FEDLAB = (  # FedLab's replication has E = 5
    {
        partition: {
            float(row["C"]): int(row[f"{source} rounds"])
            for row in table_of("fedavg_table1")
            if row["partition"] == partition
        }
        for partition in PARTITIONS
    }
    for source in ("paper", "FedLab")
)
FRACTIONS = tuple(PAPER["IID"])  # C, the fraction of clients in a round; 0: one client
LINES = {"pixels 0..1": "sfl", "standardised": "focus", "paper": "fedavg", "FedLab": "scaffold"}
NEAR = 1.5  # factor between our rounds and the paper's that counts as agreement


@dataclass(frozen=True)
class TableCell:
    """A cell of table 1 (pixel scaling, partition, fraction of clients).

    tried: learning rate -> seed -> rounds to the target accuracy, None if it was not reached.
    """

    pixels: str
    partition: str
    fraction: float
    tried: Mapping[float, Mapping[int, float | None]]

    @cached_property
    def search(self) -> dict[float, float]:
        """Learning rate -> rounds to the target accuracy on the first seed; inf if it was not reached."""
        first = min(seed for seeds in self.tried.values() for seed in seeds)
        rounds_of = {lr: seeds[first] for lr, seeds in sorted(self.tried.items()) if first in seeds}
        return {lr: math.inf if rounds is None else rounds for lr, rounds in rounds_of.items()}

    @property
    def lr(self) -> float:
        """The learning rate with the fewest rounds to the target on the first seed."""
        return min(self.search, key=lambda lr: self.search[lr])

    @property
    def inside(self) -> bool:
        """Whether the best learning rate is neither the smallest nor the largest one tried."""
        return min(self.search) < self.lr < max(self.search)

    @property
    def heading(self) -> str:
        return f"{self.partition}, pixels {self.pixels}"

    @property
    def ours(self) -> Stat:
        """The rounds to the target at the best learning rate, over the seeds that reached it."""
        measured = self.tried[self.lr].values()
        return Stat.over([rounds for rounds in measured if rounds is not None], of=len(measured))

    @property
    def ratio(self) -> float:
        """Our rounds to the target divided by the paper's; nan if no run reached the target."""
        return self.ours.mean / PAPER[self.partition][self.fraction]


def crossing(run: RunRecord, target: float) -> float | None:
    """The rounds until the curve of the best accuracy so far crosses the target, None if it never does (sec. 3).

    The curve is linear between measurements.
    """
    seen = np.flatnonzero(np.isfinite(run.column(ACCURACY)))
    rounds, best = run.rounds[seen].astype(np.float64) + 1, np.maximum.accumulate(run.column(ACCURACY)[seen])
    if not (best >= target).any():
        return None
    first = int(np.argmax(best >= target))
    if first == 0:
        return float(rounds[0])
    share = (target - best[first - 1]) / (best[first] - best[first - 1])
    return float(rounds[first - 1] + share * (rounds[first] - rounds[first - 1]))


@EXPERIMENTS.register("fedavg/table1", paper="FedAvg (McMahan et al. 2017) table 1")
class Table1(Grid):
    """Rounds to 97 % on MNIST for fractions C of clients per round; 2NN, E = 1 local epoch, batches of B = 10.

    2NN: an MLP with two hidden layers of 200.
    """

    base, choices, cells = ("reproduce/fedavg_table1",), (*KEYS, "seed"), "values"
    seeds = (0, 1, 2)  # the paper does not say how many; the learning rate is chosen on the first
    axes: ClassVar = {
        "pixels": PIXELS,
        "partition": {name: {"partition.name": key} for name, key in PARTITIONS.items()},
        "fraction": {
            c: {
                "smoke": {"participation.size": max(1, round(50 * c))},
                "paper": {"participation.size": max(1, round(100 * c))},
            }
            for c in FRACTIONS
        },
        "lr": {lr: {"local.lr": lr} for lr in RATES},
    }
    small: ClassVar = {"pixels": ("standardised",), "lr": RATES[2:4]}
    smoke: ClassVar = {"rounds": 100, "stop.target": 0.85}
    measures: ClassVar = {
        ROUNDS: lambda run: crossing(run, run.config["stop"]["target"]),
    }

    def label(self, point: Point) -> str:
        pixels = f", pixels {point.pixels}" if PIXELS[point.pixels] else ""
        return f"{point.partition}, C={point.fraction:g}, lr {point.lr:g}{pixels}"

    def options_of(self, point: Point, scale: str) -> dict[str, Any]:
        """A run ends at the target, or after twice the paper's rounds."""
        return {"rounds": 2 * PAPER[point.partition][point.fraction]} if scale == "paper" else {}

    def headline(self, row: Row) -> tuple[str, float | None, float | None]:
        return ROUNDS, row.measures[ROUNDS], PAPER[row.cell["partition"]][row.cell["fraction"]]

    def run(self, cache: RunCache) -> Findings:
        cells = [
            TableCell(
                cell.pixels,
                cell.partition,
                cell.fraction,
                {
                    lr: {run.config["seed"]: self.measure(run, ROUNDS) for run in group.runs}
                    for lr, group in groups.items()
                },
            )
            for cell, groups in by(self.groups(cache), "lr").items()
        ]
        return Findings([table(cells)], claims(cells), {"table1": figure(cells)}, [TUNED])

    def missing(self, rows: Sequence[Row]) -> list[str]:
        made, rates = by_cell(rows, *KEYS[:3]), by_cell(rows, *KEYS)
        cells = {
            f"{partition}, C={fraction:g}, pixels {pixels}": (plain(pixels), plain(partition), plain(fraction))
            for pixels, partition, fraction in product(reversed(PIXELS), PARTITIONS, FRACTIONS)
        }
        have = [name for name, cell in cells.items() if cell in made]
        tried = [sum(rate[:3] == cell for rate in rates) for cell in made]
        seeds = f"{max(map(len, made.values()), default=0)} of {len(self.seeds)} seeds"
        return [
            f"{len(have)} of {len(cells)} cells have runs ({join_names(have)}), with {min(tried, default=0)} to "
            f"{max(tried, default=0)} learning rates in place of the paper's 11 to 13, and {seeds}"
        ]


UNTUNED = "a best learning rate is at an edge of the rates tried: others may be better"
TUNED = (
    "the paper tunes the learning rate on a grid of 11 to 13 values; ours is the best of the rates listed, so that our "
    "rounds can only fall if more rates are tried"
)


def table(cells: Sequence[TableCell]) -> ReportTable:
    """The table with one row per cell: our rounds, the paper's, FedLab's, and ours at every learning rate tried."""
    rows = [
        {
            "block": cell.heading,
            "fraction": f"{cell.fraction:g}",
            "lr": f"{cell.lr:g}" + ("" if len(cell.search) > 1 else ", the only one tried"),
            "ours": cell.ours,
            "paper": PAPER[cell.partition][cell.fraction],
            "ratio": cell.ratio,
            "fedlab": FEDLAB[cell.partition][cell.fraction],
            "seeds": cell.ours.of,
            "tried": ", ".join(f"{lr:g}: {cost_or_dash(rounds)}" for lr, rounds in cell.search.items()),
        }
        for cell in cells
    ]
    columns = [
        Column("fraction", "C", str, None, True),
        Column("lr", "best lr tried", str, None, True),
        Column("ours", "ours", cost_text, None, True),
        Column("seeds", "seeds", str, None, True),
        Column("paper", "paper", count_text, None, True),
        Column("ratio", "ours / paper", ratio_text, None, True),
        Column("fedlab", "FedLab, E = 5", count_text, None, True),
        Column("tried", "lr: rounds"),
    ]
    caption = (
        "Rounds until the best test accuracy so far crosses the target, interpolated between rounds; mean ± std over "
        "seeds. C = 0 is one client. –: not within twice the paper's rounds."
    )
    return ReportTable("table1", caption, columns, rows)


def claims(cells: Sequence[TableCell]) -> list[Claim]:
    """The claims about rounds to the target, for each partition and pixel scaling.

    Our rounds are the paper's within a factor of NEAR. C = 0.1 needs fewer rounds than one client (C = 0), by a larger
    factor on non-IID data. The best learning rate is not at an edge of the grid.
    """
    out = []
    for heading in dict.fromkeys(cell.heading for cell in cells):
        chosen = [cell for cell in cells if cell.heading == heading]
        near = [1 / NEAR <= cell.ratio <= NEAR for cell in chosen]
        evidence = "ours / paper: " + ", ".join(f"C={cell.fraction:g}: {ratio_text(cell.ratio)}" for cell in chosen)
        holds = False if not all(near) else True if len(chosen) == len(FRACTIONS) else None
        rounds = ", ".join(f"C={cell.fraction:g}: {PAPER[cell.partition][cell.fraction]:,}" for cell in chosen)
        text = f"{heading}: the rounds are the paper's, within a factor of {NEAR:g}"
        out.append(Claim(text, holds, evidence, published=f"{rounds} rounds"))
    for pixels in reversed(PIXELS):
        gains = {}
        for partition, published in PAPER.items():
            chosen = [cell for cell in cells if (cell.pixels, cell.partition) == (pixels, partition)]
            gain = _gain(chosen)
            if gain is not None:
                gains[partition] = gain
                text = f"{chosen[0].heading}: with ten clients per round fewer rounds are needed than with one"
                theirs = f"{published[0.0] / published[0.1]:.1f} times"
                tuned = all(cell.inside for cell in chosen if cell.fraction in FRACTIONS[:2])
                remark = "" if tuned else UNTUNED
                out.append(Claim(text, gain > 1.0 if tuned else None, f"{gain:.1f} times fewer", remark, theirs))
        if len(gains) == len(PAPER):
            text = f"pixels {pixels}: ten clients in place of one save more rounds on non-IID data than on IID data"
            evidence = f"{gains['non-IID']:.1f} times fewer against {gains['IID']:.1f}"
            decided = all(claim.holds is not None for claim in out[-2:])
            out.append(Claim(text, gains["non-IID"] > gains["IID"] if decided else None, evidence))
    if cells:
        edge = [f"{cell.heading}, C={cell.fraction:g}" for cell in cells if not cell.inside]
        evidence = f"in {len(cells) - len(edge)} of {len(cells)} cells" + (
            f"; at an edge in: {'; '.join(edge)}" if edge else ""
        )
        out.append(
            Claim(
                "the best learning rate is neither the smallest nor the largest of those tried",
                not edge or None,
                evidence,
            )
        )
    return out


def _gain(cells: Sequence[TableCell]) -> float | None:
    """The rounds with one client divided by the rounds with C = 0.1; None if a cell is missing or missed the target."""
    means = {cell.fraction: cell.ours.mean for cell in cells if cell.ours.count}
    one, ten = (means.get(fraction) for fraction in FRACTIONS[:2])
    return None if one is None or ten is None else one / ten


def figure(cells: Sequence[TableCell]) -> Figure:
    """The figure of rounds to the target over the fraction of clients, ours with the published numbers."""
    from papers import draw

    panels = {}
    for partition in PARTITIONS:
        lines: dict[str, tuple[dict[float, Stat], dict[float, Stat]]] = {name: ({}, {}) for name in LINES}
        for cell in cells:
            if cell.partition == partition:
                name = "pixels 0..1" if cell.pixels == "0..1" else cell.pixels
                lines[name][0][FRACTIONS.index(cell.fraction)] = cell.ours
        for name, published in (("paper", PAPER), ("FedLab", FEDLAB)):
            lines[name][1].update((x, Stat(n, math.nan, 1, 1)) for x, n in enumerate(published[partition].values()))
        panels[partition] = lines
    ticks = [f"{fraction:g}" for fraction in FRACTIONS]
    picture = draw.sweeps(panels, draw.styles(LINES), "rounds to the target", "fraction of clients C", ticks)
    for ax in picture.axes:
        ax.set_yscale("log")
        log_axis(ax.yaxis, *ax.get_ylim())
    return picture
