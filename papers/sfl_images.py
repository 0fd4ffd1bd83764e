"""SFL [2] (Li & Lyu, NeurIPS 2023), image classification: tables 7 to 9, figures 2, 3 and 9 to 15; see sfl_grid."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim
from papers.grid import Point, by
from papers.lines import Lines, Sweep, Sweeps, Values, best_value
from papers.numbers import ACCURACY, accuracy_text, listing, stat_of
from papers.run_cache import RunCache
from papers.sfl_grid import CLIENTS, CLOSE, GRID, METHODS, NORMS, VGG, Images, axes, clip, close, last_rounds, published
from raylfl.report.derived import Stat, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column
from raylfl.report.wording import metric_name, stat_text


class Rates(Images, Sweeps):
    """A table of accuracies at every learning rate of the grid, on one seed."""

    choices = ("task", "classes", "steps", "method", "lr", "seed")
    rates: ClassVar = {"smoke": GRID, "paper": GRID}
    heading, looks = "{0.task}, C={0.classes}, K={0.steps}", METHODS
    caption = "Test accuracy in %, mean over the last rounds of one seed."
    sweeps, published = Images.accuracies, Images.printed

    def claims(self, sweeps: Mapping[Point, Sweep]) -> list[Claim]:
        return self.rate_claims(sweeps, {cell: best_value(sweep) for cell, sweep in sweeps.items()})

    def rate_claims(self, sweeps: Mapping[Point, Sweep], best: Mapping[Point, float]) -> list[Claim]:
        """The claims of Sec. 4.2 about the best learning rates."""
        smaller = [rates["SFL"] <= rates["PFL"] for rates in by(best, "method").values() if len(rates) == 2]
        order = share("the best learning rate of SFL is not above that of PFL", smaller)
        places = {cell: GRID[cell.method].index for cell in best}
        near = [abs(places[c](lr) - places[c](best_value(self.published(c)))) <= 1 for c, lr in best.items()]
        text = "the best learning rates are the paper's, or next to them on the grid"
        return [*([order] if smaller else []), share(text, near)]


def share(text: str, holds: Sequence[bool], what: str = "") -> Claim:
    return Claim(text, all(holds), f"in {sum(holds)} of {len(holds)}{what}")


@EXPERIMENTS.register("sfl/fig2", paper="SFL [2] fig. 2")
class Fig2(Rates):
    """Learning rates of VGG-9 on CIFAR-10 (its rows of table 10)."""

    stem, small = "fig2", {"steps": (5, 20)}

    def rate_claims(self, sweeps: Mapping[Point, Sweep], best: Mapping[Point, float]) -> list[Claim]:
        rates = by({cell: lr for cell, lr in best.items() if cell.method == "SFL"}, "classes", "steps")
        both = {k: lr for k, lr in rates.items() if len(lr) == 2}
        falls = all(lr[1] <= lr[2] for lr in both.values()) and any(lr[1] < lr[2] for lr in both.values())
        evidence = ", ".join(f"K={k}: {lr[1]:g} at C=1, {lr[2]:g} at C=2" for k, lr in both.items())
        text = "SFL's best learning rate is smaller on more heterogeneous data"
        return [*super().rate_claims(sweeps, best), *([Claim(text, falls, evidence)] if both else [])]


@EXPERIMENTS.register("sfl/table7", paper="SFL [2] table 7")
class Table7(Rates):
    """Gradient clipping: VGG-9 on CIFAR-10 with four max norms at every learning rate."""

    stem, heading, axes = "table7", "C={0.classes}, K={0.steps}, {0.norm}", axes(norms=tuple(NORMS))

    def rate_claims(self, sweeps: Mapping[Point, Sweep], best: Mapping[Point, float]) -> list[Claim]:
        rates = [[lrs[name] for name in NORMS if name in lrs] for lrs in by(best, "norm").values()]
        larger = [all(b >= a for a, b in pairwise(lrs)) for lrs in rates]
        last = share("a smaller max norm never has a smaller best learning rate (G.2, 4)", larger, " settings")
        claims = clipping_claims({cell: sweep[best[cell]].mean for cell, sweep in sweeps.items()})
        return [*super().rate_claims(sweeps, best), *claims, last]


def clipping_claims(accuracies: Mapping[Point, float]) -> list[Claim]:
    """Observations 1 to 3 of App. G.2 on gradient clipping, from the cells' best accuracies."""
    norms: dict[Point, dict[int | None, float]] = {}
    for cell, value in accuracies.items():
        norms.setdefault(cell.without("norm"), {})[clip(cell)] = 100 * value
    gain = {m: _mean(level[20] - level[None] for cell, level in norms.items() if cell.method == m) for m in METHODS}
    evidence = listing(gain, lambda points: f"{points:+.1f} points")
    claims = [Claim("a max norm of 20 helps PFL more than SFL (G.2, 1)", gain["PFL"] > gain["SFL"], evidence)]
    behind = {cell: max(level.values()) - level[min(filter(None, level))] for cell, level in norms.items()}
    steps = sorted({cell.steps for cell in behind})
    cost = {
        (c, k): _mean(v for p, v in behind.items() if (p.classes, p.steps) == (c, k)) for c in (1, 2) for k in steps
    }
    skewed, mild = cost[1, steps[-1]], cost[2, steps[-1]]
    evidence = f"K={steps[-1]}: behind the best norm by {skewed:.1f} points at C=1, by {mild:.1f} at C=2"
    claims.append(Claim("the tightest norm costs more on more heterogeneous data (G.2, 2)", skewed > mild, evidence))
    if len(steps) > 1:
        evidence = "C=1: " + listing({f"K={k}": cost[1, k] for k in steps}, lambda points: f"{points:.1f} points")
        text = "the tightest norm costs more with more local steps (G.2, 3)"
        claims.append(Claim(text, cost[1, steps[-1]] > cost[1, steps[0]], evidence))
    return claims


def _mean(values: Iterable[float]) -> float:
    finite = [v for v in values if np.isfinite(v)]
    return float(np.mean(finite)) if finite else float("nan")


@EXPERIMENTS.register("sfl/fig3", paper="SFL [2] fig. 3")
class Fig3(Images, Sweeps):
    """Effect of local steps: VGG-9 on CIFAR-10 at the best learning rate of each K."""

    stem, heading, swept, x_label, form, looks = "fig3", "C={0.classes}", "steps", "local steps K", "K={:g}", METHODS
    caption = "Test accuracy in % over the last rounds of one seed, best learning rate of each K."
    notes = (f"clipping {NORMS['medium']}",)
    axes: ClassVar = axes(steps=(1, 2, 5, 10, 20))  # the paper names 1, 5 and 10
    small: ClassVar = {"steps": (1, 5, 10)}

    def sweeps(self, cache: RunCache) -> Mapping[Point, Sweep]:
        return by({cell: sweep[best_value(sweep)] for cell, sweep in self.accuracies(cache).items()}, "steps")

    def claims(self, sweeps: Mapping[Point, Sweep]) -> list[Claim]:
        claims = []
        for cell, stats in sweeps.items():
            if cell.method == "SFL":
                sfl, heading = {k: stat.mean for k, stat in stats.items()}, self.title(cell)
                evidence = listing({f"K={k:g}": mean for k, mean in sfl.items()})
                claims.append(Claim(f"{heading}: SFL improves from K=1 to K=5", sfl[5] > sfl[1], evidence))
                claims.append(Claim(f"{heading}: SFL deteriorates from K=5 to K=10", sfl[10] < sfl[5], evidence))
        return claims


class Smoothed(Images, Lines):
    """Curves with a moving average over a share of their points, which are 10 rounds apart."""

    panel, share = "cell", 0.04

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        rounds = int(next(iter(lines.values()))["runs"].runs[0].config["rounds"])
        return {**self.plot, "window": max(1, round(self.share * rounds / 10))}


class LongRuns(Smoothed):
    """VGG-9 on CIFAR-10: long runs of all learning rates within a margin of the best (0: only the best)."""

    measured, margin = CLIENTS, 0.0
    rounds: ClassVar = {"smoke": (60, 120), "paper": (1000, 4000)}
    heading = "{0.method}, C={0.classes}, K={0.steps}"
    caption = "Test accuracy in % over the last rounds of one seed."

    def long(self, cache: RunCache) -> dict[Point, dict[float, Group]]:
        """Cell -> learning rate -> its long run."""
        last, tried = last_rounds(self.rounds[cache.scale][0]), self.sweep(cache, self.chosen(cache)).items()
        left = {cell: close(groups, last, self.margin) for cell, groups in tried}
        return self.sweep(cache, {cell: rates if self.margin else rates[:1] for cell, rates in left.items()}, 1)

    def values(self, panel: Point, line: str, group: Group) -> dict[str, Any]:
        return {"lr": group.runs[0].config["local"]["lr"], "ours": accuracy_of(group)}


def accuracy_of(group: Group, metric: str = ACCURACY) -> Stat:
    return last_k(group, metric, last_rounds(int(group.runs[0].config["rounds"])))


@EXPERIMENTS.register("sfl/table8", paper="SFL [2] table 8, fig. 9")
class Table8(LongRuns):
    """Gradient clipping in the long run: VGG-9 on CIFAR-10, four max norms at the best short-run learning rate."""

    stem, line, axes = "table8", "norm", axes(norms=tuple(NORMS))
    columns = (
        Column("clip", "max norm", str, None, True),
        Column("lr", "ours: lr", "{:g}".format, None, True),
        Column("ours", "long run", accuracy_text, None, True),
        Column("their lr", "published: lr", "{:g}".format, None, True),
        Column("theirs", "long run", accuracy_text, None, True),
    )

    def lines(self, cache: RunCache) -> dict[Point, dict[str, Group]]:
        return by({cell: group for cell, groups in self.long(cache).items() for group in groups.values()}, "norm")

    def values(self, panel: Point, line: str, group: Group) -> dict[str, Any]:
        norm = clip(panel.but(norm=line))
        lr, _, end = published("sfl_long")[panel.classes, panel.steps, panel.method, norm].split()
        theirs = {"clip": norm or "none", "their lr": float(lr), "theirs": stat_of(end)}
        return super().values(panel, line, group) | theirs

    def claims(self, values: Values) -> list[Claim]:
        ends = {cell.but(norm=norm): of["ours"].mean for cell, lines in values.items() for norm, of in lines.items()}
        return clipping_claims(ends)


@EXPERIMENTS.register("sfl/table9", paper="SFL [2] table 9, fig. 10")
class Table9(LongRuns):
    """The fine search: VGG-9 on CIFAR-10, all learning rates within 3 points of the best in the long run."""

    stem, line, margin = "table9", "candidate", CLOSE
    small: ClassVar = {"steps": (5, 20)}
    columns = (Column("ours", "ours", accuracy_text, "max", True),)

    def lines(self, cache: RunCache) -> dict[Point, dict[str, Group]]:
        long = self.long(cache)
        return {cell: {f"lr {lr:g}": group for lr, group in groups.items()} for cell, groups in long.items()}

    def candidates(self, cell: Point) -> str:
        """The paper's candidates, such as `0.03 28.72, 0.1 46.21`."""
        return published("sfl_fine")[cell.classes, cell.steps, cell.method]

    def title(self, panel: Point) -> str:
        return f"{super().title(panel)}; published: {self.candidates(panel)}"

    def claims(self, values: Values) -> list[Claim]:
        same = []
        for panel, lines in values.items():
            pairs = [text.partition(" ") for text in self.candidates(panel).split(", ")]
            theirs = max(pairs, key=lambda pair: float(pair[2] or 0))[0]
            same.append(best_value({name: of["ours"] for name, of in lines.items()}) == f"lr {theirs}")
        return [share("the best learning rates are the paper's", same)]


class TrainingCurves(Smoothed):
    """Losses and accuracies on the clients' data and on the test set, PFL and SFL at their best learning rates.

    "Training": of the participating clients; "training-R": of random ones. Where the table with the same search does
    not measure clients, the runs at the value `True` of an axis `clients` do.
    """

    smoke_seeds, rates = 1, {"smoke": {"PFL": (0.1,), "SFL": (0.03,)}, "paper": GRID}
    rounds: ClassVar = {"smoke": (60,), "paper": (1000,)}
    metrics: ClassVar = ("participants/loss", "participants/accuracy", "random/loss", "random/accuracy", ACCURACY)
    curves = metrics[:-1]
    line, heading, plot, share = "run", "{0.task}, C={0.classes}", {"band": "std"}, 0.08
    caption = "Mean ± std over seeds and the last rounds."
    columns = (
        Column("lr", "lr", "{:g}".format, None, True),
        *(Column(m, metric_name(m), partial(stat_text, metric=m), None, True) for m in metrics),
    )

    def lines(self, cache: RunCache) -> dict[Point, dict[str, Group]]:
        best = {cell: [lr] for cell, lr in self.search(cache, self.chosen(cache)).items()}
        clients = {"clients": True} if "clients" in self.axes else {}
        runs = self.sweep(cache, best, len(self.rounds[cache.scale]) - 1, self.of_scale(cache), **clients)
        lines: dict[Point, dict[str, Group]] = {}
        for cell, groups in runs.items():
            of_panel = lines.setdefault(Point(task=cell.task, classes=cell.classes), {})
            of_panel |= {f"{cell.method}, K={cell.steps}": group for group in groups.values()}
        return lines

    def values(self, panel: Point, line: str, group: Group) -> dict[str, Any]:
        ends = {metric: accuracy_of(group, metric) for metric in self.metrics}
        return {"lr": group.runs[0].config["local"]["lr"], **ends}


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
