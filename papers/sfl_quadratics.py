"""SFL [2] (Li & Lyu, NeurIPS 2023): simulations on quadratic functions, figures 1 and 6; partitions, figure 7.

PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim, Findings, PaperResult
from papers.grid import Axis, Point, by
from papers.lines import Lines, Values
from papers.numbers import MNIST, cost_or_dash, counts_of, listing, mean_cost
from papers.run_cache import RunCache
from papers.sfl_grid import METHODS
from raylfl.core.arrays import Ints
from raylfl.report.derived import Stat, group_to_target, last_k
from raylfl.report.figures import Panel, composed
from raylfl.report.partition_plot import heat
from raylfl.report.runs import Group
from raylfl.report.style import rc
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number
from raylfl.theory.fedacs import limit
from raylfl.theory.quadratic import QuadraticProblem

DISTANCE = "global/distance_abs"  # |x|, as x* = 0
RATES = (0.003, 0.006, 0.01, 0.03, 0.06, 0.1, 0.3, 0.6)
SEEDS = (0, 1, 2, 3, 4)  # for SFL's random order; PFL with both clients is deterministic and needs one seed
EXACT, LAST = 1e-12, 50  # distance; rounds
DELTAS = {"0": 0.0, "1/3": 1 / 3, "1": 1.0}  # of figure 6
STEPS = 10  # as in conf/reproduce/sfl_fig1.yaml
NOTE = (
    "ζ: heterogeneity of the gradients at the optimum, δ: of the Hessians; PFL is deterministic here (both clients, "
    "full batches), so that one seed is run and its band in the figure is a line"
)
Pairs = list[list[float]]  # [A, B] of f = A x^2 + B x for each client


def pairs(delta: float, zeta: float) -> Pairs:
    """The two clients of table 6, with Hessians 1 ± delta and gradients ± zeta at the optimum x* = 0."""
    return [[(1 + delta) / 2, zeta], [(1 - delta) / 2, -zeta]]


def _rounds_to(group: Group, goal: float) -> float:
    return mean_cost(group_to_target(group, DISTANCE, goal))


def _spread(stat: Stat) -> str:
    return number(stat.mean, 3) + (f" ± {number(stat.std, 2)}" if stat.std > 0 else "")


def axes(settings: Mapping[str, tuple[float, float]]) -> dict[str, Axis]:
    return {
        "pair": {label: {"data.init_args.pairs": pairs(*values)} for label, values in settings.items()},
        "method": {name: {"algorithm.name": key} for name, key in METHODS.items()},
        "lr": {lr: {"local.lr": lr} for lr in RATES},
    }


def predicted_limit(clients: Pairs, lr: float) -> float:
    """The |x| at which PFL ends, by eq. 39 of FedACS, which has it at a finite learning rate."""
    curvature, slope = np.array(clients).T
    shares = np.full(len(clients), 1 / len(clients))
    problem = QuadraticProblem(2 * curvature[:, None, None], -slope[:, None], np.zeros(len(clients)), shares)
    return abs(limit(problem, shares, np.full(len(clients), STEPS), lr).item())


class Simulations(Lines):
    """PFL and SFL on pairs of quadratics, label -> (delta, zeta), each at its best learning rate."""

    scales, base, seeds, tuned, cells = (), ("reproduce/sfl_fig1",), SEEDS, "lr", "label"
    name = "{pair}, {method}, lr {lr}"
    curves, curve_points = (DISTANCE,), 500  # all rounds: the claims count them
    measures: ClassVar = {"end": lambda run: float(run.column(DISTANCE)[-1])}
    panel, metrics, looks, notes = "pair", (DISTANCE,), METHODS, (NOTE,)
    caption = (
        "|x|, the distance to x* = 0, as mean ± std over rounds and seeds. PFL's limit: |x| after infinitely many "
        "rounds."
    )
    columns = (
        Column("lr", "best lr", "{:g}".format, None, True),
        Column("end", f"|x|, last {LAST} rounds", _spread, "min", True),
        Column("predicted", "PFL's limit", partial(number, digits=3), None, True),
        Column("rounds", "rounds to 0.1", cost_or_dash, "min", True),
    )
    pairs: ClassVar[Mapping[str, tuple[float, float]]]

    def lines(self, cache: RunCache) -> dict[str, dict[str, Group]]:
        """Pair -> method -> runs at its best learning rate, for SFL on all seeds, for PFL on the first."""
        tried, best = by(self.groups(cache, seeds=SEEDS[:1]), "lr"), dict[Point, float]()
        for cell, groups in tried.items():  # all final distances below EXACT are equal: then the rounds to EXACT count
            ends = {lr: max(last_k(group, DISTANCE, LAST).mean, EXACT) for lr, group in groups.items()}
            best[cell] = min(groups, key=lambda lr: (ends[lr], _rounds_to(groups[lr], EXACT)))
        final = self.groups(cache, [cell.but(lr=lr) for cell, lr in best.items() if cell.method == "SFL"], SEEDS)
        runs = {cell: final.get(cell.but(lr=lr)) or tried[cell][lr] for cell, lr in best.items()}
        return by(runs, "method", "pair")

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        lr, clients = float(group.runs[0].config["local"]["lr"]), pairs(*self.pairs[panel])
        predicted = predicted_limit(clients, lr) if line == "PFL" else float("nan")
        end = last_k(group, DISTANCE, LAST)
        return {"lr": lr, "end": end, "predicted": predicted, "rounds": _rounds_to(group, 0.1)}

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        if max(of["end"].mean for of in lines.values()) < EXACT:
            return {"limits": (EXACT / 10, 20), "right": 6, "start": 10.0}
        zeta = lines["PFL"]["runs"].runs[0].config["data"]["init_args"]["pairs"][0][1]
        return {"limits": (1e-5 * max(zeta, 1.0), 20), "start": 10.0}

    def claims(self, values: Values) -> list[Claim]:
        claims = []
        for label, lines in values.items():
            delta, zeta = self.pairs[label]
            pfl, sfl = (lines[name]["end"].mean for name in METHODS)
            goal = EXACT if zeta == 0 else 1.5 * pfl
            slow, fast = (_rounds_to(lines[name]["runs"], goal) for name in METHODS)
            ends = f"|x| at the end: PFL {pfl:.2g}, SFL {sfl:.2g}"
            rounds = f"rounds to |x| = {goal:.2g}: PFL {slow:g}, SFL {fast:g}"
            if zeta == 0:
                claim = Claim("SFL is faster", fast < slow, rounds)
            elif delta == 0:
                claim = Claim("PFL reaches the optimum, SFL does not", pfl < EXACT and sfl > 1e-4 * zeta, ends)
            else:
                text, holds = "SFL is faster and ends nearer to the optimum", sfl < pfl and fast < slow
                claim = Claim(text, holds, f"{ends}; {rounds}")
            claims.append(replace(claim, text=f"{label}: {claim.text}"))
        return claims

    def run(self, cache: RunCache) -> Findings:
        """Adds the claim, not in the paper, that PFL ends at its limit, for rates that reach it in 500 rounds."""
        findings, off = super().run(cache), []
        points = [point for point in self.points(cache.scale) if point.method == "PFL" and point.lr >= 0.03]
        for point, group in self.groups(cache, points, SEEDS[:1]).items():
            end, clients = self.measure(group.runs[0], "end"), pairs(*self.pairs[point.pair])
            apart = abs((np.inf if end is None else end) - predicted_limit(clients, point.lr))
            off.append(apart / max(clients[0][1], 1))
        text = (
            "PFL ends at the minimum of the surrogate sum_i w_i f_i, w_i = (1 - (1 - 2 eta A_i)^K)/(2 eta A_i), "
            "for f_i(x) = A_i x^2 + B_i x, learning rate eta and K local steps"
        )
        evidence = f"{len(off)} runs, at most {max(off):.1g} apart, relative to max(ζ, 1)"
        return replace(findings, claims=[*findings.claims, Claim(text, max(off) < 1e-9, evidence)])


@EXPERIMENTS.register("sfl/fig1", paper="SFL [2] fig. 1")
class Fig1(Simulations):
    """PFL (parallel: FedAvg) and SFL on two quadratics, in four groups of growing heterogeneity."""

    pairs: ClassVar = {"group 1: ζ 0, δ 0": (0.0, 0.0), "group 2: ζ 1, δ 0": (0.0, 1.0)}
    pairs |= {"group 3: ζ 1, δ 1/3": (1 / 3, 1.0), "group 4: ζ 1, δ 1": (1.0, 1.0)}
    axes: ClassVar = axes(pairs)
    stem = "fig1"


@EXPERIMENTS.register("sfl/fig6", paper="SFL [2] fig. 6")
class Fig6(Simulations):
    """PFL (parallel: FedAvg) and SFL on two quadratics, nine combinations of gradient and Hessian heterogeneity."""

    pairs: ClassVar = {f"δ {d}, ζ {zeta:g}": (DELTAS[d], zeta) for d, zeta in product(DELTAS, (1.0, 10.0, 100.0))}
    axes: ClassVar = axes(pairs)
    stem = "fig6"


@EXPERIMENTS.register("sfl/exdir", paper="SFL [2] fig. 7")
class ExDir(PaperResult):
    """MNIST over 10 clients by ExDir(C, alpha): C = 1, 2, 5, 10 classes per client, alpha = 100, 10, 1."""

    classes: ClassVar = (1, 2, 5, 10)
    alphas: ClassVar = (100.0, 10.0, 1.0)  # from left to right, as in the paper

    def run(self, cache: RunCache) -> Findings:
        counts = {
            (c, alpha): counts_of({"name": "exdir", "classes": c, "alpha": alpha}, MNIST, clients=10)
            for c, alpha in product(self.classes, self.alphas)
        }
        names, rows = {cell: "ExDir({}, {:g})".format(*cell) for cell in counts}, []
        for cell, item in counts.items():
            samples, uneven = item.sum(axis=1), unevenness(item)
            row = {"partition": names[cell], "classes": (item > 0).sum(axis=1).mean(), "uneven": uneven}
            rows.append(row | {"least": int(samples.min()), "most": int(samples.max())})
        columns = [
            Column("partition", "partition"),
            Column("classes", "classes per client", partial(number, digits=3), None, True),
            Column("least", "fewest samples", str, None, True),
            Column("most", "most samples", str, None, True),
            Column("uneven", "unevenness", partial(number, digits=3), None, True),
        ]
        caption = "Unevenness: std / mean of a class's sample numbers at the clients that own it, mean over classes."
        size = (2.9, 2.35)
        panels = [Panel(names[cell], partial(heat, counts=item), size, names[cell]) for cell, item in counts.items()]
        with rc():
            figure = composed(panels)
        return Findings([ReportTable("exdir", caption, columns, rows)], self.claims(counts), {"exdir": figure})

    def claims(self, counts: Mapping[tuple[int, float], Ints]) -> list[Claim]:
        single = [np.sort(counts[1, alpha].max(axis=1)) for alpha in self.alphas]
        left_over = [sum(MNIST) - int(item.sum()) for item in counts.values()]
        most = {c: max(int((counts[c, a] > 0).sum(axis=1).max()) for a in self.alphas) for c in self.classes}
        spread = {f"C={c}": [unevenness(counts[c, alpha]) for alpha in self.alphas] for c in self.classes[1:]}
        falls = listing(spread, lambda values: ", ".join(f"{v:.2f}" for v in values), ": ", "; ")
        same = "C=1: the three partitions are the same, one class per client"
        whole = f"each client holds all of one class: {single[0].min()} to {single[0].max()} samples"
        text = "C>1: heterogeneity increases from left to right (alpha = 100, 10, 1)"
        classes = "most classes: " + listing({f"C={c}": n for c, n in most.items()}, str, ": ")
        return [
            Claim(same, all(np.array_equal(sizes, np.sort(MNIST)) for sizes in single), whole),
            Claim(text, all(a < b < c for a, b, c in spread.values()), f"unevenness for alpha = 100, 10, 1: {falls}"),
            Claim("no client holds more than C classes", all(n <= c for c, n in most.items()), classes),
            Claim("no sample is left over", not any(left_over), f"{sum(left_over)} in all partitions together"),
        ]


def unevenness(counts: Ints) -> float:
    """Std / mean of a class's sample numbers at the clients that have it, mean over classes; counts: [N, K]."""
    owned = [column[column > 0] for column in counts.T]
    return float(np.mean([column.std() / column.mean() for column in owned]))
