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
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from raylfl.report.derived import Stat, to_target
from raylfl.report.runs import RunRecord
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import cost_text, count_text
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.choice import plain
from papers.coverage import by_cell, listed
from papers.ledger import Row, read
from papers.run_cache import RunCache
from papers.setting import Setting, setting
from papers.texts import ACCURACY, cost_or_dash, ratio_text

KEYS = ("pixels", "partition", "fraction", "lr")  # of a cell
ROUNDS = "rounds to target"
PARTITIONS = {"IID": "iid", "non-IID": "shards"}
FRACTIONS = (0.0, 0.1, 0.2, 0.5, 1.0)  # C, the fraction of clients in a round; 0: one client
PIXELS: dict[str, dict[str, Any]] = {  # the paper does not say how it scales them
    "standardised": {},
    "0..1": {"data.init_args.mean": [0.0], "data.init_args.std": [1.0]},
}
RATES = (0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0)  # 10^(k/3), the coarser of the paper's grids
# partition -> C -> published rounds to the target
PAPER = {
    "IID": dict(zip(FRACTIONS, (316, 87, 77, 75, 70), strict=True)),
    "non-IID": dict(zip(FRACTIONS, (3275, 664, 619, 443, 380), strict=True)),
}
FEDLAB = {  # with E = 5
    "IID": dict(zip(FRACTIONS, (77, 43, 37, 36, 35), strict=True)),
    "non-IID": dict(zip(FRACTIONS, (1056, 439, 427, 474, 507), strict=True)),
}
LINES = {"standardised": "focus", "pixels 0..1": "sfl", "paper": "fedavg", "FedLab": "scaffold"}
SEEDS = (0, 1, 2)  # the paper does not say how many; the learning rate is chosen on the first
NEAR = 1.5  # factor between our rounds and the paper's that counts as agreement


@dataclass(frozen=True)
class Tried:
    """A run of a cell of table 1 with one learning rate and seed.

    rounds: the number of rounds to the target accuracy; None if it was not reached.
    """

    lr: float
    seed: int
    rounds: float | None


@dataclass(frozen=True)
class TableCell:
    """A cell of table 1 (pixel scaling, partition, fraction of clients) and the runs of this cell."""

    pixels: str
    partition: str
    fraction: float
    tried: Sequence[Tried]

    @cached_property
    def search(self) -> dict[float, float]:
        """Learning rate -> rounds to the target accuracy on the first seed; inf if it was not reached."""
        first = min(run.seed for run in self.tried)
        found = {run.lr: run.rounds for run in self.tried if run.seed == first}
        return {lr: math.inf if rounds is None else rounds for lr, rounds in sorted(found.items())}

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
        own = [run.rounds for run in self.tried if run.lr == self.lr]
        return Stat.over([rounds for rounds in own if rounds is not None], of=len(own))

    @property
    def ratio(self) -> float:
        """Our rounds to the target divided by the paper's; nan if no run reached the target."""
        return self.ours.mean / PAPER[self.partition][self.fraction]


@EXPERIMENTS.register("fedavg/table1", paper="FedAvg (McMahan et al. 2017) table 1")
class Table1(PaperResult):
    """Rounds to 97 % on MNIST for fractions C of clients per round; 2NN, E = 1 local epoch, batches of B = 10.

    2NN: an MLP with two hidden layers of 200.
    """

    scales, choices = SCALES, (*KEYS, "seed")

    def run(self, cache: RunCache) -> Findings:
        pixels, rates = cache.pick((("standardised",), RATES[2:4]), (tuple(PIXELS), RATES))
        every = product(pixels, PARTITIONS, FRACTIONS, rates)
        cells = [cell for cell in every if cache.only.keeps(**dict(zip(KEYS, cell, strict=True)))]
        groups = cache.groups([setting_of(*cell, cache.scale) for cell in cells], cache.pick(SEEDS[:1], SEEDS))
        runs: dict[tuple[str, str, float], list[Tried]] = {}
        for (*place, lr), group in zip(cells, groups, strict=True):
            own = [Tried(lr, run.config["seed"], self.measures(run)[ROUNDS]) for run in group.runs]
            runs.setdefault(tuple(place), []).extend(own)
        return findings([TableCell(*place, own) for place, own in runs.items()])

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        """The pixel scaling, partition, fraction of clients and learning rate of a run."""
        names = {key: name for name, key in PARTITIONS.items()}
        size, clients = config["participation"].get("size"), config["num_clients"]
        if not size or not clients or config["partition"]["name"] not in names:
            return None
        fraction = 0.0 if size == 1 else size / clients
        pixels = "0..1" if config["data"]["init_args"].get("std") in ([1.0], [1]) else "standardised"
        partition = names[config["partition"]["name"]]
        return {"pixels": pixels, "partition": partition, "fraction": fraction, "lr": config["local"]["lr"]}

    def cell_setting(self, cell: Mapping[str, Any], scale: str) -> Setting | None:
        if cell["fraction"] not in FRACTIONS or cell["lr"] not in RATES:
            return None
        return setting_of(**cell, scale=scale)

    def measures(self, run: RunRecord) -> dict[str, float | None]:
        """The rounds until the run's target accuracy; None if it was not reached."""
        return {ROUNDS: to_target(run, ACCURACY, run.config["stop"]["target"], between=True)}

    def whole(self) -> int:
        return len(PIXELS) * len(PARTITIONS) * len(FRACTIONS) * len(RATES) * len(SEEDS)

    def missing(self, rows: Sequence[Row]) -> list[str]:
        made, rates = by_cell(rows, *KEYS[:3]), by_cell(rows, *KEYS)
        wanted = {
            f"{partition}, C={fraction:g}, pixels {pixels}": (plain(pixels), plain(partition), plain(fraction))
            for pixels, partition, fraction in product(PIXELS, PARTITIONS, FRACTIONS)
        }
        have = [name for name, place in wanted.items() if place in made]
        tried = [sum(own[:3] == place for own in rates) for place in made]
        seeds = f"{max(map(len, made.values()), default=0)} of {len(SEEDS)} seeds"
        return [
            f"{len(have)} of {len(wanted)} cells have runs ({listed(have)}), with {min(tried, default=0)} to "
            f"{max(tried, default=0)} learning rates in place of the paper's 11 to 13, and {seeds}"
        ]

    def from_ledger(self, folder: Path) -> Findings:
        runs: dict[tuple[str, str, float], list[Tried]] = {}
        for row in read(folder):
            place = row.cell["pixels"], row.cell["partition"], row.cell["fraction"]
            runs.setdefault(place, []).append(Tried(row.cell["lr"], row.seed, row.measures[ROUNDS]))
        return findings([TableCell(*place, own) for place, own in sorted(runs.items())])


def setting_of(pixels: str, partition: str, fraction: float, lr: float, scale: str) -> Setting:
    """The setting of a cell of table 1 with this learning rate.

    pixels, partition: the cell's pixel scaling and partition by name; fraction: C, the fraction of clients in a round.
    A run ends at the target, or after twice the paper's rounds; at scale `smoke` after 100 rounds at most.
    """
    smoke = scale == "smoke"
    clients = 50 if smoke else 100
    options = {
        "partition.name": PARTITIONS[partition],
        "participation.size": max(1, round(fraction * clients)),
        "local.lr": lr,
        "rounds": 100 if smoke else 2 * PAPER[partition][fraction],
        **({"stop.target": 0.85} if smoke else {}),
        **PIXELS[pixels],
    }
    label = f"{partition}, C={fraction:g}, lr {lr:g}" + (f", pixels {pixels}" if PIXELS[pixels] else "")
    return setting(label, ["reproduce/fedavg_table1", f"reproduce/{scale}"], options)


def findings(places: Sequence[TableCell]) -> Findings:
    """The table, the claims and the figure for the cells that have runs."""
    return Findings([table(places)], claims(places), {"table1": figure(places)}, [TUNED])


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
    for pixels in PIXELS:
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
