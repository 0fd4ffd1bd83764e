"""SFL [2] (Li & Lyu, NeurIPS 2023), App. G.2 and G.3: long runs of VGG-9 on CIFAR-10, tables 8, 9, figures 9, 10.

A short run has 1000 rounds, a long run 4000. PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raylfl.report.derived import Stat, last_k, score
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import stat_text
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.run_cache import RunCache
from papers.sfl_cells import CLIP, CLOSE, GRID, METHODS, SMOKE_GRID, VGG, Cell, runs_of
from papers.sfl_numbers import TABLE8, TABLE9
from papers.texts import ACCURACY, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT, LONG = (1000, 40), (4000, 100)  # rounds, averaged last rounds
SMOKE = (60, 20), (120, 20)


def searched(cache: RunCache, cells: Iterable[Cell]) -> dict[Cell, dict[float, Group]]:
    """Cell -> learning rate -> short run, for every learning rate of the grid, on the seed SEARCH_SEED."""
    rounds, _ = cache.pick(SMOKE[0], SHORT)
    grid = cache.pick(SMOKE_GRID, GRID)
    return runs_of(cache, {cell: grid[cell.method] for cell in cells}, rounds)


def clipping_claims(accuracies: Mapping[Cell, float]) -> list[Claim]:
    """The claims in observations 1 to 3 of App. G.2 on gradient clipping.

    accuracies: the accuracy of each cell (C, K, method, max norm) at its best learning rate.
    """
    norms: dict[tuple[int, int, str], dict[int | None, float]] = {}
    for cell, value in accuracies.items():
        norms.setdefault((cell.classes, cell.steps, cell.method), {})[cell.clip] = 100 * value
    gain = {m: _mean(own[20] - own[None] for (_, _, method), own in norms.items() if method == m) for m in METHODS}
    behind = {place: max(own.values()) - own[min(filter(None, own))] for place, own in norms.items()}
    told = ", ".join(f"{method} {points:+.1f} points" for method, points in gain.items())
    claims = [Claim("a max norm of 20 helps PFL more than SFL (G.2, 1)", gain["PFL"] > gain["SFL"], told)]
    most = max(k for _, k, _ in behind)
    by_class = {c: _mean(v for (own, k, _), v in behind.items() if own == c and k == most) for c in (1, 2)}
    told = f"K={most}: behind the best norm by {by_class[1]:.1f} points at C=1, by {by_class[2]:.1f} at C=2"
    claims.append(
        Claim("the tightest norm costs more on more heterogeneous data (G.2, 2)", by_class[1] > by_class[2], told)
    )
    by_steps = {k: _mean(v for (c, own, _), v in behind.items() if own == k and c == 1) for _, k, _ in behind}
    if len(by_steps) > 1:
        values = [by_steps[k] for k in sorted(by_steps)]
        told = "C=1: " + ", ".join(f"K={k} {by_steps[k]:.1f} points" for k in sorted(by_steps))
        claims.append(
            Claim("the tightest norm costs more with more local steps (G.2, 3)", values[-1] > values[0], told)
        )
    return claims


def _mean(values: Any) -> float:
    """The mean of the finite values."""
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else float("nan")


@EXPERIMENTS.register("sfl/table8", paper="SFL [2] table 8, fig. 9")
class Table8(PaperResult):
    """Gradient clipping in the long run: VGG-9 on CIFAR-10, four max norms at the best short-run learning rate.

    A long run has 4000 rounds, a short run 1000.
    """

    scales, shares = SCALES, "sfl/images"

    def run(self, cache: RunCache) -> Findings:
        theirs = {
            Cell(VGG, c, k, method, clips[side]): numbers[side].split()
            for (c, k), rows in TABLE8.items()
            if k in cache.pick((5,), (5, 20, 50))
            for clips, numbers in rows.items()
            for side, method in enumerate(METHODS)
        }
        (_, short), (rounds, long) = cache.pick(SMOKE, (SHORT, LONG))
        tried = searched(cache, theirs)
        rates = {
            cell: max(own, key=lambda lr, own=own: score(own[lr], ACCURACY, short))  # type: ignore[misc]
            for cell, own in tried.items()
        }
        continued = runs_of(cache, {cell: [lr] for cell, lr in rates.items()}, rounds)
        runs = {cell: own[rates[cell]] for cell, own in continued.items()}
        ends = {cell: last_k(group, ACCURACY, long) for cell, group in runs.items()}
        rows = [
            {"row": f"C={cell.classes}, K={cell.steps}, {cell.method}", "clip": _norm(cell), "lr": rates[cell]}
            | {"short": last_k(tried[cell][rates[cell]], ACCURACY, short), "long": ends[cell]}
            | {"their lr": float(theirs[cell][0]), "their short": published(theirs[cell][1])}
            | {"their long": published(theirs[cell][2])}
            for cell in theirs
        ]
        lines: dict[str, dict[str, Group]] = {}
        for cell, group in runs.items():
            lines.setdefault(f"{cell.method}, {cell.row}", {})[_norm(cell)] = group
        claims = clipping_claims({cell: stat.mean for cell, stat in ends.items()})
        return Findings([self._table(rows)], claims, {"fig9": _figure(cache, lines)})

    @staticmethod
    def _table(rows: Sequence[Mapping[str, Any]]) -> ReportTable:
        columns = [Column("row", ""), Column("clip", "max norm")]
        for key, heading in (("", "ours"), ("their ", "published")):
            columns.append(Column(f"{key}lr", f"{heading}: lr", lambda v: f"{v:g}", None, True))
            columns.append(Column(f"{key}short", "short run", accuracy, None, True))
            columns.append(Column(f"{key}long", "long run", accuracy, None, True))
        return ReportTable(
            "table8", "Test accuracy in % over the last rounds of one seed.", columns, [dict(r) for r in rows]
        )


@EXPERIMENTS.register("sfl/table9", paper="SFL [2] table 9, fig. 10")
class Table9(PaperResult):
    """The fine search: VGG-9 on CIFAR-10, all learning rates within 3 points of the best in the long run.

    The learning rates within 3 points of the best after 1000 rounds are compared after 4000 rounds.
    """

    scales, shares = SCALES, "sfl/images"

    def run(self, cache: RunCache) -> Findings:
        theirs = {
            Cell(VGG, c, k, method, CLIP[method]): candidates(both[side])
            for (c, k), both in TABLE9.items()
            if k in cache.pick((5, 20), (5, 20, 50))
            for side, method in enumerate(METHODS)
        }
        (_, short), (rounds, long) = cache.pick(SMOKE, (SHORT, LONG))
        close: dict[Cell, list[float]] = {}
        for cell, own in searched(cache, theirs).items():
            scores = {lr: score(group, ACCURACY, short) for lr, group in own.items()}
            close[cell] = [lr for lr, value in scores.items() if value >= max(scores.values()) - CLOSE]
        runs = runs_of(cache, close, rounds)
        ours = {
            cell: {lr: last_k(group, ACCURACY, long).mean for lr, group in own.items()} for cell, own in runs.items()
        }
        rows = [
            {"block": f"C={cell.classes}, K={cell.steps}", "method": cell.method}
            | {"ours": _told(ours[cell]), "published": _told(theirs[cell])}
            for cell in theirs
        ]
        columns = [Column("method", "method"), Column("ours", "ours"), Column("published", "published")]
        table = ReportTable("table9", "Candidates (long-run test accuracy in %), the best first.", columns, rows)
        same = [_best(ours[cell]) == _best(theirs[cell]) for cell in theirs]
        claim = Claim("the best learning rates are the paper's", all(same), f"in {sum(same)} of {len(same)}")
        lines = {
            f"{cell.method}, {cell.row}": {f"lr {lr:g}": group for lr, group in own.items()}
            for cell, own in runs.items()
        }
        return Findings([table], [claim], {"fig10": _figure(cache, lines)})


def _figure(cache: RunCache, lines: Mapping[str, Mapping[str, Group]]) -> Figure:
    """A figure of accuracy curves; lines: heading of a panel -> name of a curve -> its runs."""
    from papers import draw

    plots = [draw.Plot(name, own, ACCURACY, window=cache.pick(1, 16)) for name, own in lines.items()]
    return draw.curves(plots, draw.styles({name: name for own in lines.values() for name in own}))


def candidates(text: str) -> dict[float, float]:
    """Learning rate -> published accuracy, from a text such as `0.03 28.72, 0.1 46.21`.

    The accuracy is nan if there is a single learning rate, for which the paper gives no number.
    """
    pairs = [part.split() for part in text.split(",")]
    return {float(pair[0]): float(pair[1]) / 100 if len(pair) > 1 else float("nan") for pair in pairs}


def _best(own: Mapping[float, float]) -> float:
    return max(own, key=lambda lr: own[lr] if np.isfinite(own[lr]) else -1.0)


def _told(own: Mapping[float, float]) -> str:
    first = sorted(own, key=lambda lr: -own[lr] if np.isfinite(own[lr]) else 1.0)
    return ", ".join(f"{lr:g}" + (f" ({100 * own[lr]:.2f})" if np.isfinite(own[lr]) else "") for lr in first)


def _norm(cell: Cell) -> str:
    return "none" if cell.clip is None else str(cell.clip)


def accuracy(stat: Stat) -> str:
    """An accuracy in per cent without its std over rounds, which the paper's tables do not have."""
    return stat_text(Stat(stat.mean, float("nan"), stat.count, stat.of), ACCURACY)
