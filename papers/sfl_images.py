"""SFL [2] (Li & Lyu, NeurIPS 2023), image classification: tables 7 to 9, figures 2, 3 and 9 to 15.

PFL is the paper's name for parallel federated learning, that is FedAvg. C: classes per client; K: local steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim, Findings
from papers.grid import Point, by, nest
from papers.run_cache import RunCache
from papers.sfl_grid import (
    CLIENTS,
    CLOSE,
    GRID,
    LAST,
    METHODS,
    NORMS,
    VARIANTS,
    VGG,
    Images,
    Sweep,
    axes,
    best_rate,
    clip,
    close,
    published,
    published_rates,
    row_name,
)
from papers.texts import ACCURACY, accuracy_text, general, stat_of
from raylfl.report.derived import Stat, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import metric_name, stat_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Rates(Images):
    """A table of accuracies at every learning rate of the grid, on one seed."""

    choices = ("task", "classes", "steps", "method", "lr", "seed")
    rates: ClassVar = {"smoke": GRID, "paper": GRID}

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        numbers, last = published_rates(), self.last(cache)
        measured = {
            cell: {lr: last_k(group, ACCURACY, last) for lr, group in groups.items()}
            for cell, groups in self.sweep(cache, self.chosen(cache)).items()
        }
        reference = {
            cell: numbers[VARIANTS.get(cell.task, cell.task), cell.classes, cell.steps, cell.method, clip(cell)]
            for cell in measured
        }
        panels: dict[str, dict[str, tuple[Sweep, Sweep]]] = {}
        for cell, sweep in measured.items():
            panels.setdefault(self.heading(cell), {})[cell.method] = (sweep, reference[cell])
        figure = draw.sweeps(panels, draw.styles(METHODS), ACCURACY, "learning rate")
        complete = {cell: sweep for cell, sweep in measured.items() if len(sweep) == len(GRID[cell.method])}
        rows = [
            {"block": self.heading(cell), "method": cell.method}
            | {f"{lr:g}": (sweep[lr], reference[cell][lr]) for lr in sweep}
            for cell, sweep in measured.items()
        ]
        columns = [Column("method", "method")]
        columns += [
            Column(f"{lr:g}", f"lr {lr:g}", _both, None, True)
            for lr in sorted({lr for sweep in measured.values() for lr in sweep})
        ]
        caption = f"Test accuracy in %, ours | published: mean over the last {last} rounds of one seed."
        table = ReportTable(self.stem, caption, columns, rows)
        return Findings([table], self.claims(complete, reference) if complete else [], {self.stem: figure})

    def heading(self, cell: Point) -> str:
        """The heading of the cell's panel, which has both methods."""
        return f"{cell.task}, {row_name(cell)}"

    def claims(self, measured: Mapping[Point, Sweep], reference: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims of Sec. 4.2 about the best learning rates of SFL and PFL (parallel: FedAvg).

        In cells with both methods SFL's best rate is not above PFL's. Each best rate is the paper's, or next to it on
        the grid. measured, reference: cell -> learning rate -> accuracy; measured only for cells with the whole grid.
        """
        both = by({cell: best_rate(sweep) for cell, sweep in measured.items()}, "method").values()
        smaller = [rates["SFL"] <= rates["PFL"] for rates in both if len(rates) == 2]
        ranks = {
            cell: [GRID[cell.method].index(best_rate(sweeps[cell])) for sweeps in (measured, reference)]
            for cell in measured
        }
        near = [abs(rank - other) <= 1 for rank, other in ranks.values()]
        order = _share("the best learning rate of SFL is not above that of PFL", smaller)
        return [
            *([order] if smaller else []),
            _share("the best learning rates are the paper's, or next to them on the grid", near),
        ]


def _share(text: str, holds: Sequence[bool]) -> Claim:
    return Claim(text, all(holds), f"in {sum(holds)} of {len(holds)}")


def _both(pair: tuple[Stat, Stat]) -> str:
    measured, reference = pair
    return f"{accuracy(measured)} | {accuracy_text(reference)}"


def accuracy(stat: Stat) -> str:
    """An accuracy in per cent without its std over rounds, which the paper's tables do not have."""
    return stat_text(Stat(stat.mean, float("nan"), stat.count, stat.of), ACCURACY)


@EXPERIMENTS.register("sfl/fig2", paper="SFL [2] fig. 2")
class Fig2(Rates):
    """Learning rates of VGG-9 on CIFAR-10 (its rows of table 10)."""

    stem, small = "fig2", {"steps": (5, 20)}

    def claims(self, measured: Mapping[Point, Sweep], reference: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims of `Rates`, and (ii) of Sec. 4.2: SFL's best learning rate falls with heterogeneity."""
        rates = nest(
            {cell: best_rate(sweep) for cell, sweep in measured.items() if cell.method == "SFL"}, "steps", "classes"
        )
        both = {k: lr for k, lr in rates.items() if len(lr) == 2}
        falls = all(lr[1] <= lr[2] for lr in both.values()) and any(lr[1] < lr[2] for lr in both.values())
        evidence = ", ".join(f"K={k}: {lr[1]:g} at C=1, {lr[2]:g} at C=2" for k, lr in both.items())
        text = "SFL's best learning rate is smaller on more heterogeneous data"
        return [*super().claims(measured, reference), *([Claim(text, falls, evidence)] if both else [])]


@EXPERIMENTS.register("sfl/table7", paper="SFL [2] table 7")
class Table7(Rates):
    """Gradient clipping: VGG-9 on CIFAR-10 with four max norms at every learning rate.

    A row of the table has a max norm of PFL (parallel: FedAvg) and a larger one of SFL, or no clipping for both.
    """

    stem, axes = "table7", axes(norms=tuple(NORMS))

    def heading(self, cell: Point) -> str:
        return f"{row_name(cell)}, {cell.norm}"

    def claims(self, measured: Mapping[Point, Sweep], reference: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims of `Rates`, and the observations of App. G.2 on gradient clipping."""
        rates = by({cell: best_rate(sweep) for cell, sweep in measured.items()}, "norm")
        larger = [
            all(b >= a for a, b in pairwise(lrs[name] for name in NORMS if name in lrs)) for lrs in rates.values()
        ]
        evidence = f"in {sum(larger)} of {len(larger)} settings"
        claims = clipping_claims({cell: sweep[best_rate(sweep)].mean for cell, sweep in measured.items()})
        last = Claim("a smaller max norm never has a smaller best learning rate (G.2, 4)", all(larger), evidence)
        return [*super().claims(measured, reference), *claims, last]


def clipping_claims(accuracies: Mapping[Point, float]) -> list[Claim]:
    """The claims in observations 1 to 3 of App. G.2 on gradient clipping.

    accuracies: the accuracy of each cell (C, K, method, max norm) at its best learning rate.
    """
    norms: dict[Point, dict[int | None, float]] = {}
    for cell, value in accuracies.items():
        norms.setdefault(cell.without("norm"), {})[clip(cell)] = 100 * value
    gain = {m: _mean(level[20] - level[None] for cell, level in norms.items() if cell.method == m) for m in METHODS}
    behind = {cell: max(level.values()) - level[min(filter(None, level))] for cell, level in norms.items()}
    evidence = ", ".join(f"{method} {points:+.1f} points" for method, points in gain.items())
    claims = [Claim("a max norm of 20 helps PFL more than SFL (G.2, 1)", gain["PFL"] > gain["SFL"], evidence)]
    most = max(cell.steps for cell in behind)
    by_class = {c: _mean(v for cell, v in behind.items() if cell.classes == c and cell.steps == most) for c in (1, 2)}
    evidence = f"K={most}: behind the best norm by {by_class[1]:.1f} points at C=1, by {by_class[2]:.1f} at C=2"
    text = "the tightest norm costs more on more heterogeneous data (G.2, 2)"
    claims.append(Claim(text, by_class[1] > by_class[2], evidence))
    steps = sorted({cell.steps for cell in behind})
    by_steps = [_mean(v for cell, v in behind.items() if cell.steps == k and cell.classes == 1) for k in steps]
    if len(steps) > 1:
        evidence = "C=1: " + ", ".join(f"K={k} {value:.1f} points" for k, value in zip(steps, by_steps, strict=True))
        text = "the tightest norm costs more with more local steps (G.2, 3)"
        claims.append(Claim(text, by_steps[-1] > by_steps[0], evidence))
    return claims


def _mean(values: Any) -> float:
    """The mean of the finite values."""
    finite = [v for v in values if np.isfinite(v)]
    return float(np.mean(finite)) if finite else float("nan")


@EXPERIMENTS.register("sfl/fig3", paper="SFL [2] fig. 3")
class Fig3(Images):
    """Effect of local steps: VGG-9 on CIFAR-10 at the best learning rate of each K.

    K: the number of local steps.
    """

    axes: ClassVar = axes(steps=(1, 2, 5, 10, 20))  # the paper names 1, 5 and 10
    small: ClassVar = {"steps": (1, 5, 10)}

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        last = self.last(cache)
        panels: dict[str, dict[str, tuple[dict[float, Stat], dict[float, Stat]]]] = {}
        for cell, groups in self.sweep(cache, self.chosen(cache)).items():
            sweep = {lr: last_k(group, ACCURACY, last) for lr, group in groups.items()}
            curve = panels.setdefault(f"C={cell.classes}", {}).setdefault(cell.method, ({}, {}))[0]
            curve[cell.steps] = sweep[best_rate(sweep)]
        figure = draw.sweeps(panels, draw.styles(METHODS), ACCURACY, "local steps K")
        claims = []
        for heading, lines in panels.items():
            sfl = {k: stat.mean for k, stat in lines["SFL"][0].items()}
            evidence = ", ".join(f"K={k:g} {100 * mean:.1f}" for k, mean in sfl.items())
            claims += [
                Claim(f"{heading}: SFL improves from K=1 to K=5", sfl[5] > sfl[1], evidence),
                Claim(f"{heading}: SFL deteriorates from K=5 to K=10", sfl[10] < sfl[5], evidence),
            ]
        rows: list[dict[str, Any]] = [
            {"block": heading, "method": method} | {f"K={k:g}": stat for k, stat in stats.items()}
            for heading, lines in panels.items()
            for method, (stats, _) in lines.items()
        ]
        steps = dict.fromkeys(key for row in rows for key in row if key.startswith("K="))
        columns = [Column("method", "method"), *(Column(key, key, accuracy_text, None, True) for key in steps)]
        caption = f"Test accuracy in % over the last {last} rounds of one seed, best learning rate of each K."
        note = f"clipping {NORMS['medium']}"
        return Findings([ReportTable("fig3", caption, columns, rows)], claims, {"fig3": figure}, [note])


class TwoStages(Images):
    """VGG-9 on CIFAR-10: a short search on the whole grid of learning rates, then long runs of some of them.

    The long runs are those of table 3.
    """

    measured = CLIENTS
    rounds: ClassVar = {"smoke": (60, 120), "paper": (1000, 4000)}

    def both(
        self, cache: RunCache, margin: float
    ) -> tuple[dict[Point, dict[float, Group]], dict[Point, dict[float, Group]]]:
        """The short runs of all rates and the long runs of those within a margin of the best: cell -> rate -> runs."""
        tried = self.sweep(cache, self.chosen(cache))
        left = {cell: close(groups, LAST[self.rounds[cache.scale][0]], margin) for cell, groups in tried.items()}
        return tried, self.sweep(cache, left if margin else {c: rates[:1] for c, rates in left.items()}, 1)

    def curves_of(self, cache: RunCache, lines: Mapping[str, Mapping[str, Group]]) -> Figure:
        """A figure of accuracy curves; lines: heading of a panel -> name of a curve -> its runs."""
        from papers import draw

        plots = [draw.Plot(name, groups, ACCURACY, window=cache.pick(1, 16)) for name, groups in lines.items()]
        return draw.curves(plots, draw.styles({name: name for groups in lines.values() for name in groups}))


@EXPERIMENTS.register("sfl/table8", paper="SFL [2] table 8, fig. 9")
class Table8(TwoStages):
    """Gradient clipping in the long run: VGG-9 on CIFAR-10, four max norms at the best short-run learning rate.

    A long run has 4000 rounds, a short run 1000.
    """

    axes: ClassVar = axes(norms=tuple(NORMS))

    def run(self, cache: RunCache) -> Findings:
        reference = published("sfl_long")
        short, long = (LAST[rounds] for rounds in self.rounds[cache.scale])
        tried, continued = self.both(cache, 0.0)
        rows, ends, lines = [], {}, dict[str, dict[str, Group]]()
        for cell, groups in continued.items():
            ((lr, group),) = groups.items()
            ends[cell] = last_k(group, ACCURACY, long)
            name = "none" if clip(cell) is None else str(clip(cell))
            numbers = reference[cell.classes, cell.steps, cell.method, clip(cell)].split()
            rows.append(
                {"row": f"{row_name(cell)}, {cell.method}", "clip": name, "lr": lr}
                | {"short": last_k(tried[cell][lr], ACCURACY, short), "long": ends[cell], "their lr": float(numbers[0])}
                | {"their short": stat_of(numbers[1]), "their long": stat_of(numbers[2])}
            )
            lines.setdefault(f"{cell.method}, {row_name(cell)}", {})[name] = group
        columns = [Column("row", ""), Column("clip", "max norm")]
        for key, heading in (("", "ours"), ("their ", "published")):
            columns.append(Column(f"{key}lr", f"{heading}: lr", general, None, True))
            columns.append(Column(f"{key}short", "short run", accuracy, None, True))
            columns.append(Column(f"{key}long", "long run", accuracy, None, True))
        table = ReportTable("table8", "Test accuracy in % over the last rounds of one seed.", columns, rows)
        claims = clipping_claims({cell: stat.mean for cell, stat in ends.items()})
        return Findings([table], claims, {"fig9": self.curves_of(cache, lines)})


@EXPERIMENTS.register("sfl/table9", paper="SFL [2] table 9, fig. 10")
class Table9(TwoStages):
    """The fine search: VGG-9 on CIFAR-10, all learning rates within 3 points of the best in the long run.

    The learning rates within 3 points of the best after 1000 rounds are compared after 4000 rounds.
    """

    small: ClassVar = {"steps": (5, 20)}

    def run(self, cache: RunCache) -> Findings:
        reference = published("sfl_fine")
        rows, same, lines = [], [], dict[str, dict[str, Group]]()
        for cell, groups in self.both(cache, CLOSE)[1].items():
            measured = {lr: last_k(group, ACCURACY, self.last(cache)).mean for lr, group in groups.items()}
            numbers = candidates(reference[cell.classes, cell.steps, cell.method])
            texts = {"ours": _text(measured), "published": _text(numbers)}
            rows.append({"block": row_name(cell), "method": cell.method} | texts)
            same.append(_rank_rates(measured)[0] == _rank_rates(numbers)[0])
            lines[f"{cell.method}, {row_name(cell)}"] = {f"lr {lr:g}": group for lr, group in groups.items()}
        columns = [Column("method", "method"), Column("ours", "ours"), Column("published", "published")]
        table = ReportTable("table9", "Candidates (long-run test accuracy in %), the best first.", columns, rows)
        claim = _share("the best learning rates are the paper's", same)
        return Findings([table], [claim], {"fig10": self.curves_of(cache, lines)})


def candidates(text: str) -> dict[float, float]:
    """Learning rate -> published accuracy, from a text such as `0.03 28.72, 0.1 46.21`.

    The accuracy is nan if there is a single learning rate, for which the paper gives no number.
    """
    pairs = [part.split() for part in text.split(",")]
    return {float(pair[0]): float(pair[1]) / 100 if len(pair) > 1 else float("nan") for pair in pairs}


def _rank_rates(values: Mapping[float, float]) -> list[float]:
    return sorted(values, key=lambda lr: -values[lr] if np.isfinite(values[lr]) else 1.0)


def _text(values: Mapping[float, float]) -> str:
    return ", ".join(
        f"{lr:g}" + (f" ({100 * values[lr]:.2f})" if np.isfinite(values[lr]) else "") for lr in _rank_rates(values)
    )


class TrainingCurves(Images):
    """Losses and accuracies on the clients' data and on the test set, PFL and SFL at their best learning rates.

    "Training" is measured on the data of the participating clients; "training-R" on data of random clients, as many as
    take part in a round. share: the fraction of all measured points in a moving average. Where the table with the same
    search does not measure the clients' data, further runs do, the values `True` of an axis `clients`.
    """

    smoke_seeds, rates = 1, {"smoke": {"PFL": (0.1,), "SFL": (0.03,)}, "paper": GRID}
    rounds: ClassVar = {"smoke": (60,), "paper": (1000,)}
    share: ClassVar[float] = 0.08
    metrics: ClassVar = ("participants/loss", "participants/accuracy", "random/loss", "random/accuracy", ACCURACY)
    curves = metrics[:-1]

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        rounds, last = self.rounds[cache.scale], self.last(cache)
        rates = self.search(cache, self.chosen(cache))
        best = {cell: [lr] for cell, lr in rates.items()}
        clients = {"clients": True} if "clients" in self.axes else {}
        runs = self.sweep(cache, best, len(rounds) - 1, self.of_scale(cache), **clients)
        groups = {cell: runs[cell][lr] for cell, lr in rates.items()}
        lines: dict[str, dict[str, Group]] = {}
        for cell, group in groups.items():
            lines.setdefault(f"{cell.task}, C={cell.classes}", {})[f"{cell.method}, K={cell.steps}"] = group
        window = cache.pick(1, max(1, round(self.share * rounds[-1] / 10)))  # evaluated every 10 rounds
        looks = draw.styles({name: name for panel in lines.values() for name in panel})
        figures = {
            f"{self.stem}_{rank}": draw.curves(
                [draw.Plot(heading, panel, m, band="std", window=window) for m in self.metrics], looks
            )
            for rank, (heading, panel) in enumerate(lines.items())
        }
        rows: list[dict[str, Any]] = [
            {"block": cell.task, "row": f"{row_name(cell)}, {cell.method}", "lr": rates[cell]}
            | {metric: last_k(group, metric, last) for metric in self.metrics}
            for cell, group in groups.items()
        ]
        columns = [Column("row", ""), Column("lr", "lr", general, None, True)]
        columns += [Column(m, metric_name(m), partial(stat_text, metric=m), None, True) for m in self.metrics]
        table = ReportTable(self.stem, f"Mean ± std over seeds and the last {last} rounds.", columns, rows)
        return Findings([table], [], figures)


MEASURED: dict[str, Any] = {"clients": {False: {}, True: CLIENTS}}  # table 11 does not measure clients
LONG: dict[str, Sequence[int]] = {"smoke": (60,), "paper": (1000, 4000)}


@EXPERIMENTS.register("sfl/fig12", paper="SFL [2] fig. 12")
class Fig12(TrainingCurves):
    """Training, training-R and test curves on MNIST."""

    stem, axes = "fig12", axes(["MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5"]) | MEASURED
    small: ClassVar = Images.small | {"task": ("MNIST, logistic",)}


@EXPERIMENTS.register("sfl/fig13", paper="SFL [2] fig. 13")
class Fig13(TrainingCurves):
    """Training, training-R and test curves on FashionMNIST."""

    stem, axes = "fig13", axes(["FMNIST, LeNet-5", "FMNIST, CNN"]) | MEASURED
    small: ClassVar = Images.small | {"task": ("FMNIST, LeNet-5",)}


@EXPERIMENTS.register("sfl/fig14", paper="SFL [2] fig. 14")
class Fig14(TrainingCurves):
    """Training, training-R and test curves on CIFAR-10, of the runs of table 3."""

    stem, share, rounds, measured = "fig14", 0.04, LONG, CLIENTS
    axes: ClassVar = axes([VGG, "CIFAR-10, ResNet-18"])
    small: ClassVar = Images.small | {"task": (VGG,)}


@EXPERIMENTS.register("sfl/fig15", paper="SFL [2] fig. 15")
class Fig15(TrainingCurves):
    """Training, training-R and test curves on CINIC-10, of the runs of table 3."""

    stem, share, rounds, measured = "fig15", 0.04, LONG, CLIENTS
    axes: ClassVar = axes(["CINIC-10, VGG-9", "CINIC-10, ResNet-18"])
    small: ClassVar = Images.small | {"task": ("CINIC-10, VGG-9",)}
