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

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from papers.base import EXPERIMENTS, Claim, Findings
from papers.choice import plain
from papers.grid import Grid, Point, by, by_cell, listed
from papers.ledger import Row
from papers.run_cache import RunCache
from papers.setting import Setting
from papers.texts import ACCURACY, cost_or_dash, ratio_text, table_of
from raylfl.report.derived import Stat, to_target
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import cost_text, count_text

KEYS = ("pixels", "partition", "fraction", "lr")  # of a cell
ROUNDS = "rounds to target"
PARTITIONS = {"IID": "iid", "non-IID": "shards"}
FRACTIONS = (0.0, 0.1, 0.2, 0.5, 1.0)  # C, the fraction of clients in a round; 0: one client
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
LINES = {"pixels 0..1": "sfl", "standardised": "focus", "paper": "fedavg", "FedLab": "scaffold"}
SEEDS = (0, 1, 2)  # the paper does not say how many; the learning rate is chosen on the first
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
        first = min(seed for own in self.tried.values() for seed in own)
        found = {lr: own[first] for lr, own in sorted(self.tried.items()) if first in own}
        return {lr: math.inf if rounds is None else rounds for lr, rounds in found.items()}

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
        own = self.tried[self.lr].values()
        return Stat.over([rounds for rounds in own if rounds is not None], of=len(own))

    @property
    def ratio(self) -> float:
        """Our rounds to the target divided by the paper's; nan if no run reached the target."""
        return self.ours.mean / PAPER[self.partition][self.fraction]


@EXPERIMENTS.register("fedavg/table1", paper="FedAvg (McMahan et al. 2017) table 1")
class Table1(Grid):
    """Rounds to 97 % on MNIST for fractions C of clients per round; 2NN, E = 1 local epoch, batches of B = 10.

    2NN: an MLP with two hidden layers of 200.
    """

    base, seeds, choices = ("reproduce/fedavg_table1",), SEEDS, (*KEYS, "seed")
    axes: ClassVar = {
        "pixels": PIXELS,
        "partition": {name: {"partition.name": key} for name, key in PARTITIONS.items()},
        "fraction": {fraction: {} for fraction in FRACTIONS},
        "lr": {lr: {"local.lr": lr} for lr in RATES},
    }
    measures: ClassVar = {
        ROUNDS: lambda run: to_target(run, ACCURACY, run.config["stop"]["target"], between=True),
    }

    def points(self, scale: str) -> list[Point]:
        every = super().points(scale)
        return every if scale == "paper" else [p for p in every if p.pixels == "standardised" and p.lr in RATES[2:4]]

    def label(self, point: Point) -> str:
        pixels = f", pixels {point.pixels}" if PIXELS[point.pixels] else ""
        return f"{point.partition}, C={point.fraction:g}, lr {point.lr:g}{pixels}"

    def cell(self, point: Point) -> dict[str, Any]:
        return dict(point)

    def setting(self, point: Point, scale: str) -> Setting:
        """A run ends at the target, or after twice the paper's rounds; at scale `smoke` after 100 rounds at most."""
        made, smoke = super().setting(point, scale), scale == "smoke"
        options = {"participation.size": max(1, round(point.fraction * (50 if smoke else 100)))}
        length = (
            {"rounds": 100, "stop.target": 0.85} if smoke else {"rounds": 2 * PAPER[point.partition][point.fraction]}
        )
        return made.with_(made.label, options | length)

    def run(self, cache: RunCache) -> Findings:
        cells = [
            TableCell(
                cell.pixels,
                cell.partition,
                cell.fraction,
                {
                    lr: {run.config["seed"]: self.measure(run, ROUNDS) for run in group.runs}
                    for lr, group in own.items()
                },
            )
            for cell, own in by(self.groups(cache), "lr").items()
        ]
        return Findings([table(cells)], claims(cells), {"table1": figure(cells)}, [TUNED])

    def missing(self, rows: Sequence[Row]) -> list[str]:
        made, rates = by_cell(rows, *KEYS[:3]), by_cell(rows, *KEYS)
        wanted = {
            f"{partition}, C={fraction:g}, pixels {pixels}": (plain(pixels), plain(partition), plain(fraction))
            for pixels, partition, fraction in product(reversed(PIXELS), PARTITIONS, FRACTIONS)
        }
        have = [name for name, place in wanted.items() if place in made]
        tried = [sum(own[:3] == place for own in rates) for place in made]
        seeds = f"{max(map(len, made.values()), default=0)} of {len(SEEDS)} seeds"
        return [
            f"{len(have)} of {len(wanted)} cells have runs ({listed(have)}), with {min(tried, default=0)} to "
            f"{max(tried, default=0)} learning rates in place of the paper's 11 to 13, and {seeds}"
        ]


UNTUNED = "a best learning rate is at an edge of the rates tried: others may be better"
TUNED = (
    "the paper tunes the learning rate on a grid of 11 to 13 values; ours is the best of the rates listed, so that our "
    "rounds can only fall if more rates are tried"
)


def table(places: Sequence[TableCell]) -> ReportTable:
    """The table with one row per cell: our rounds, the paper's, FedLab's, and ours at every learning rate tried."""
    rows = [
        {
            "block": place.heading,
            "fraction": f"{place.fraction:g}",
            "lr": f"{place.lr:g}" + ("" if len(place.search) > 1 else ", the only one tried"),
            "ours": place.ours,
            "paper": PAPER[place.partition][place.fraction],
            "ratio": place.ratio,
            "fedlab": FEDLAB[place.partition][place.fraction],
            "seeds": place.ours.of,
            "tried": ", ".join(f"{lr:g}: {cost_or_dash(rounds)}" for lr, rounds in place.search.items()),
        }
        for place in places
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


def claims(places: Sequence[TableCell]) -> list[Claim]:
    """The claims about rounds to the target, for each partition and pixel scaling.

    Our rounds are the paper's within a factor of NEAR. C = 0.1 needs fewer rounds than one client (C = 0), by a larger
    factor on non-IID data. The best learning rate is not at an edge of the grid.
    """
    out = []
    for heading in dict.fromkeys(place.heading for place in places):
        own = [place for place in places if place.heading == heading]
        near = [1 / NEAR <= place.ratio <= NEAR for place in own]
        told = "ours / paper: " + ", ".join(f"C={place.fraction:g}: {ratio_text(place.ratio)}" for place in own)
        holds = False if not all(near) else True if len(own) == len(FRACTIONS) else None
        out.append(Claim(f"{heading}: the rounds are the paper's, within a factor of {NEAR:g}", holds, told))
    for pixels in reversed(PIXELS):
        gains = {}
        for partition, theirs in PAPER.items():
            own = [place for place in places if (place.pixels, place.partition) == (pixels, partition)]
            gain = _gain(own)
            if gain is not None:
                gains[partition] = gain
                text = f"{own[0].heading}: with ten clients per round fewer rounds are needed than with one"
                told = f"{gain:.1f} times fewer; published: {theirs[0.0] / theirs[0.1]:.1f} times"
                tuned = all(place.inside for place in own if place.fraction in FRACTIONS[:2])
                out.append(Claim(text, gain > 1.0 if tuned else None, told, "" if tuned else UNTUNED))
        if len(gains) == len(PAPER):
            text = f"pixels {pixels}: ten clients in place of one save more rounds on non-IID data than on IID data"
            told = f"{gains['non-IID']:.1f} times fewer against {gains['IID']:.1f}"
            decided = all(claim.holds is not None for claim in out[-2:])
            out.append(Claim(text, gains["non-IID"] > gains["IID"] if decided else None, told))
    if places:
        edge = [f"{place.heading}, C={place.fraction:g}" for place in places if not place.inside]
        told = f"in {len(places) - len(edge)} of {len(places)} cells" + (
            f"; at an edge in: {'; '.join(edge)}" if edge else ""
        )
        out.append(
            Claim(
                "the best learning rate is neither the smallest nor the largest of those tried", not edge or None, told
            )
        )
    return out


def _gain(places: Sequence[TableCell]) -> float | None:
    """The rounds with one client divided by the rounds with C = 0.1; None if a cell is missing or missed the target."""
    means = {place.fraction: place.ours.mean for place in places if place.ours.count}
    one, ten = (means.get(fraction) for fraction in FRACTIONS[:2])
    return None if one is None or ten is None else one / ten


def figure(places: Sequence[TableCell]) -> Figure:
    """The figure of rounds to the target over the fraction of clients, ours with the published numbers."""
    from papers import draw

    panels = {}
    for partition in PARTITIONS:
        own = [place for place in places if place.partition == partition]
        ours = [
            {float(FRACTIONS.index(place.fraction)): place.ours for place in own if place.pixels == pixels}
            for pixels in PIXELS
        ]
        paper, fedlab = (
            {float(x): Stat(rounds, math.nan, 1, 1) for x, rounds in enumerate(numbers[partition].values())}
            for numbers in (PAPER, FEDLAB)
        )
        panels[partition] = dict(zip(LINES, (*((line, {}) for line in ours), ({}, paper), ({}, fedlab)), strict=True))
    drawn = draw.sweeps(panels, draw.styles(LINES), "rounds to the target", "fraction of clients C")
    for ax in drawn.axes:
        ax.set(xscale="linear", yscale="log", xlim=(-0.2, len(FRACTIONS) - 0.8))
        ax.set_xticks(range(len(FRACTIONS)), [f"{fraction:g}" for fraction in FRACTIONS])
        ax.yaxis.set(major_locator=LogLocator(subs=(1.0, 2.0, 5.0)), minor_locator=NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    return drawn
