"""FedAvg (McMahan, Moore, Ramage, Hampson & y Arcas, AISTATS 2017), table 1: rounds to a target accuracy.

E: local epochs, 1 in the paper, 5 in FedLab's replication. As defined in sec. 3, the learning rate is the best of a
grid, for each cell, and a curve is the best test accuracy so far, interpolated linearly between evaluations.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from papers.base import EXPERIMENTS, Claim, Findings
from papers.grid import Grid, Point, by
from papers.ledger import Row
from papers.lines import styles, sweeps_figure
from papers.numbers import ACCURACY, cost_or_dash, listing, ratio_text, table_of
from papers.run_cache import RunCache
from raylfl.report.curves import log_axis
from raylfl.report.derived import Stat
from raylfl.report.runs import RunRecord
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import cost_text, count_text

ROUNDS = "rounds to target"
PARTITIONS = {"IID": "iid", "non-IID": "shards"}
PIXELS: dict[str, dict[str, Any]] = {  # the paper does not say how it scales them
    "0..1": {"data.init_args.mean": [0.0], "data.init_args.std": [1.0]},
    "standardised": {},
}
RATES = (0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0)  # 10^(k/3), the coarser of the paper's grids
ROWS = {(row["partition"], float(row["C"])): row for row in table_of("fedavg_table1")}
# (partition, C) -> published rounds to the target
PAPER, FEDLAB = ({cell: int(row[f"{name} rounds"]) for cell, row in ROWS.items()} for name in ("paper", "FedLab"))
FRACTIONS = tuple(dict.fromkeys(c for _, c in PAPER))  # C, the fraction of clients in a round; 0: one client
LINES = {"pixels 0..1": "sfl", "standardised": "focus", "paper": "fedavg", "FedLab": "scaffold"}
CLIENTS = (("smoke", 50), ("paper", 100))
NEAR = 1.5  # factor between our rounds and the paper's that counts as agreement


def row_of(point: Point, tried: Mapping[float, Mapping[int, float | None]]) -> dict[str, Any]:
    """The row of a cell; tried: learning rate -> seed -> rounds to the target accuracy, None if it was not reached.

    The best rate has the fewest rounds on the first seed; inside: whether it is neither the smallest nor the largest.
    """
    first = min(seed for seeds in tried.values() for seed in seeds)
    reached = {lr: seeds[first] for lr, seeds in sorted(tried.items()) if first in seeds}
    search = {lr: math.inf if rounds is None else rounds for lr, rounds in reached.items()}
    best = min(search, key=lambda lr: search[lr])
    ours = Stat.over([rounds for rounds in tried[best].values() if rounds is not None], of=len(tried[best]))
    paper = PAPER[point.partition, point.fraction]
    row: dict[str, Any] = {"point": point, "block": f"{point.partition}, pixels {point.pixels}"}
    row |= {"fraction": f"{point.fraction:g}", "fedlab": FEDLAB[point.partition, point.fraction]}
    row |= {"lr": f"{best:g}" + ("" if len(search) > 1 else ", the only one tried"), "seeds": ours.of}
    row |= {"inside": min(search) < best < max(search), "ours": ours, "paper": paper, "ratio": ours.mean / paper}
    return row | {"tried": listing({f"{lr:g}": rounds for lr, rounds in search.items()}, cost_or_dash, ": ")}


def crossing(run: RunRecord, target: float) -> float | None:
    """The rounds until the curve of the best accuracy so far crosses the target, None if it never does (sec. 3)."""
    seen = np.flatnonzero(np.isfinite(run.column(ACCURACY)))
    rounds, best = run.rounds[seen].astype(np.float64) + 1, np.maximum.accumulate(run.column(ACCURACY)[seen])
    if not (best >= target).any():
        return None
    first = int(np.argmax(best >= target))
    between = slice(max(first - 1, 0), first + 1)
    return float(np.interp(target, best[between], rounds[between]))


@EXPERIMENTS.register("fedavg/table1", paper="FedAvg (McMahan et al. 2017) table 1")
class Table1(Grid):
    """Rounds to 97 % on MNIST for fractions C of clients per round; 2NN, E = 1 local epoch, batches of B = 10."""

    base, choices, cells = ("reproduce/fedavg_table1",), ("pixels", "partition", "fraction", "lr", "seed"), "values"
    seeds = (0, 1, 2)  # the paper does not say how many; the learning rate is chosen on the first
    axes: ClassVar = {
        "pixels": PIXELS,
        "partition": {name: {"partition.name": key} for name, key in PARTITIONS.items()},
        "fraction": {c: {s: {"participation.size": max(1, round(n * c))} for s, n in CLIENTS} for c in FRACTIONS},
        "lr": {lr: {"local.lr": lr} for lr in RATES},
    }
    small: ClassVar = {"pixels": ("standardised",), "lr": RATES[2:4]}
    smoke: ClassVar = {"rounds": 100, "stop.target": 0.85}
    measures: ClassVar = {ROUNDS: lambda run: crossing(run, run.config["stop"]["target"])}

    def label(self, point: Point) -> str:
        pixels = f", pixels {point.pixels}" if PIXELS[point.pixels] else ""
        return f"{point.partition}, C={point.fraction:g}, lr {point.lr:g}{pixels}"

    def options_of(self, point: Point, scale: str) -> dict[str, Any]:
        return {"rounds": 2 * PAPER[point.partition, point.fraction]} if scale == "paper" else {}

    def headline(self, point: Point, row: Row) -> tuple[str, float | None, float | None]:
        return ROUNDS, row.measures[ROUNDS], PAPER[point.partition, point.fraction]

    def run(self, cache: RunCache) -> Findings:
        rows = []
        for cell, groups in by(self.groups(cache), "lr").items():
            tried = {lr: {run.seed: self.measure(run, ROUNDS) for run in g.runs} for lr, g in groups.items()}
            rows.append(row_of(cell, tried))
        table = ReportTable("table1", CAPTION, COLUMNS, rows)
        return Findings([table], claims(rows), {"table1": figure(rows)}, [TUNED])


UNTUNED = "a best learning rate is at an edge of the rates tried: others may be better"
TUNED = (
    "the paper tunes the learning rate on a grid of 11 to 13 values; ours is the best of the rates listed, so that our "
    "rounds can only fall if more rates are tried"
)
CAPTION = (
    "Rounds until the best test accuracy so far crosses the target, interpolated between rounds; mean ± std over "
    "seeds. C = 0 is one client. –: not within twice the paper's rounds."
)
COLUMNS = [
    Column("fraction", "C", str, None, True),
    Column("lr", "best lr tried", str, None, True),
    Column("ours", "ours", cost_text, None, True),
    Column("seeds", "seeds", str, None, True),
    Column("paper", "paper", count_text, None, True),
    Column("ratio", "ours / paper", ratio_text, None, True),
    Column("fedlab", "FedLab, E = 5", count_text, None, True),
    Column("tried", "lr: rounds"),
]


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    out = []
    for heading in dict.fromkeys(row["block"] for row in rows):
        chosen = {f"C={row['fraction']}": row for row in rows if row["block"] == heading}
        ratios = {name: row["ratio"] for name, row in chosen.items()}
        near = all(1 / NEAR <= ratio <= NEAR for ratio in ratios.values())
        holds = near and (True if len(chosen) == len(FRACTIONS) else None)
        published = listing({name: row["paper"] for name, row in chosen.items()}, "{:,}".format, ": ") + " rounds"
        text = f"{heading}: the rounds are the paper's, within a factor of {NEAR:g}"
        out.append(Claim(text, holds, "ours / paper: " + listing(ratios, ratio_text, ": "), published=published))
    cells = {row["point"]: row for row in rows if row["ours"].count}
    for pixels in reversed(PIXELS):
        gains, decided = {}, True
        for partition in PARTITIONS:
            pair = [Point(pixels=pixels, partition=partition, fraction=c) for c in FRACTIONS[:2]]
            if all(point in cells for point in pair):
                one, ten = (cells[point] for point in pair)
                gains[partition] = gain = one["ours"].mean / ten["ours"].mean
                decided &= (tuned := one["inside"] and ten["inside"])
                text = f"{one['block']}: with ten clients per round fewer rounds are needed than with one"
                theirs, holds = f"{one['paper'] / ten['paper']:.1f} times", gain > 1.0 if tuned else None
                out.append(Claim(text, holds, f"{gain:.1f} times fewer", "" if tuned else UNTUNED, theirs))
        if len(gains) == len(PARTITIONS):
            text = f"pixels {pixels}: ten clients in place of one save more rounds on non-IID data than on IID data"
            evidence = f"{gains['non-IID']:.1f} times fewer against {gains['IID']:.1f}"
            out.append(Claim(text, gains["non-IID"] > gains["IID"] if decided else None, evidence))
    edges = [f"{row['block']}, C={row['fraction']}" for row in rows if not row["inside"]]
    evidence = f"in {len(rows) - len(edges)} of {len(rows)} cells"
    evidence += f"; at an edge in: {'; '.join(edges)}" if edges else ""
    text = "the best learning rate is neither the smallest nor the largest of those tried"
    return [*out, *([Claim(text, not edges or None, evidence)] if rows else [])]


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    panels: dict[str, Any] = {partition: {name: ({}, {}) for name in LINES} for partition in PARTITIONS}
    for row in rows:
        point = row["point"]
        name = "pixels 0..1" if point.pixels == "0..1" else point.pixels
        panels[point.partition][name][0][point.fraction] = row["ours"]
    for name, published in (("paper", PAPER), ("FedLab", FEDLAB)):
        for (partition, fraction), rounds in published.items():
            panels[partition][name][1][fraction] = Stat(rounds, math.nan, 1, 1)
    picture = sweeps_figure(panels, styles(LINES), "rounds to the target", "fraction of clients C")
    for ax in picture.axes:
        ax.set_yscale("log")
        log_axis(ax.yaxis, *ax.get_ylim())
    return picture
