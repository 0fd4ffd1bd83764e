"""SFL [2] (Li & Lyu, NeurIPS 2023): simulations on quadratic functions, figures 1 and 6.

PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim, Findings
from papers.choice import plain
from papers.grid import Axis, Grid, Point, by, nest
from papers.run_cache import RunCache
from papers.sfl_grid import METHODS
from papers.texts import cost_or_dash, mean_cost
from raylfl.report.derived import Stat, group_to_target, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number

if TYPE_CHECKING:
    from papers import draw

DISTANCE = "global/distance_abs"  # |x|, as x* = 0
RATES = (0.003, 0.006, 0.01, 0.03, 0.06, 0.1, 0.3, 0.6)
SEEDS = (0, 1, 2, 3, 4)  # for SFL's random order; PFL with both clients is deterministic and needs one seed
EXACT = 1e-12
LAST = 50
Pairs = list[list[float]]  # [A, B] of f = A x^2 + B x for each client


def pairs(delta: float, zeta: float) -> Pairs:
    """The two clients of table 6, with Hessians 1 ± delta and gradients ± zeta at the optimum x* = 0.

    Returns [A, B] of f(x) = A x^2 + B x for each client.
    """
    return [[(1 + delta) / 2, zeta], [(1 - delta) / 2, -zeta]]


@dataclass(frozen=True)
class PairRuns:
    """The runs of PFL (parallel: FedAvg) and SFL on one pair of clients.

    clients: [A, B] of f(x) = A x^2 + B x for each client. rates: method -> learning rate -> runs on the first seed.
    best: method -> runs at its best learning rate, for SFL on all seeds, for PFL on the first.
    """

    clients: Pairs
    rates: Mapping[str, Mapping[float, Group]]
    best: Mapping[str, Group]

    def end(self, name: str) -> float:
        """The final distance |x| of a method from x* = 0: the mean over the seeds and the last rounds."""
        return last_k(self.best[name], DISTANCE, LAST).mean

    @property
    def exact(self) -> bool:
        """Whether both methods converge to the optimum x* = 0."""
        return max(self.end(name) for name in METHODS) < EXACT

    def rounds_to(self, name: str, goal: float) -> float:
        """The mean number of rounds over seeds until a method has |x| <= goal; inf if a seed never reaches it."""
        return mean_cost(group_to_target(self.best[name], DISTANCE, goal))

    def rate(self, name: str) -> float:
        return float(self.best[name].runs[0].config["local"]["lr"])


def _rank(group: Group) -> tuple[float, float]:
    """A sort key for runs, smaller is better: the final distance, all below EXACT equal, then the rounds to EXACT."""
    return max(last_k(group, DISTANCE, LAST).mean, EXACT), mean_cost(group_to_target(group, DISTANCE, EXACT))


def axes(settings: Mapping[str, tuple[float, float]]) -> dict[str, Axis]:
    """The axes of a figure; settings: label -> (delta, zeta) of `pairs`."""
    return {
        "pair": {label: {"data.init_args.pairs": pairs(*values)} for label, values in settings.items()},
        "method": {name: {"algorithm.name": key} for name, key in METHODS.items()},
        "lr": {lr: {"local.lr": lr} for lr in RATES},
    }


def local_weights(clients: Pairs, lr: float, steps: int) -> np.ndarray:
    """The weight Omega_i = (1 - (1 - 2 eta A_i)^K) / (2 eta A_i) of each client in PFL's limit; K for A_i = 0.

    In its K local steps from x, a client with f_i(x) = A_i x^2 + B_i x moves by -eta Omega_i grad f_i(x). PFL
    (parallel: FedAvg) therefore ends where sum_i Omega_i grad f_i(x) = 0. For eta -> 0 all Omega_i are K, and PFL ends
    at x*.

    clients: [A_i, B_i]; lr: eta; steps: K.
    """
    curvature = np.array([2 * lr * a for a, _ in clients])
    moved = 1 - (1 - curvature) ** steps
    weights = np.full(len(clients), float(steps))
    np.divide(moved, curvature, out=weights, where=curvature > 0)
    return weights


def predicted_limit(clients: Pairs, lr: float) -> float:
    """The |x| at which PFL (parallel: FedAvg) ends, the minimiser of sum_i Omega_i f_i.

    Omega_i: `local_weights`; clients: [A_i, B_i] of f_i(x) = A_i x^2 + B_i x.
    """
    from raylfl.data.quadratics import Coefficients

    weights = local_weights(clients, lr, steps=10)  # as in conf/reproduce/sfl_fig1.yaml
    data = Coefficients(tuple((a, b) for a, b in clients))
    return abs(data.optimum((weights / weights.sum()).tolist()).item())


class Simulations(Grid):
    """A figure of PFL (parallel: FedAvg) and SFL on pairs of quadratics, each at its best learning rate.

    pairs: label -> (delta, zeta). stem: the figure's file name.
    """

    scales, base, seeds, tuned = (), ("reproduce/sfl_fig1",), SEEDS, "lr"
    curves, curve_points = (DISTANCE,), 500  # all rounds: the claims count them
    measures: ClassVar = {"end": lambda run: float(run.column(DISTANCE)[-1])}
    pairs: ClassVar[Mapping[str, tuple[float, float]]]
    stem: ClassVar[str]

    def cell(self, point: Point) -> dict[str, Any]:
        return {"run": plain(self.label(point))}

    def label(self, point: Point) -> str:
        return f"{point.pair}, {point.method}, lr {point.lr}"

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        tried = by(self.groups(cache, seeds=SEEDS[:1]), "lr")
        best = {cell: min(groups, key=lambda lr, groups=groups: _rank(groups[lr])) for cell, groups in tried.items()}  # type: ignore[misc]
        points = [cell.but(lr=lr) for cell, lr in best.items() if cell.method == "SFL"]
        final = {p.without("lr"): group for p, group in self.groups(cache, points, SEEDS).items()}
        ends = nest({cell: final.get(cell) or tried[cell][best[cell]] for cell in tried}, "pair", "method")
        rates = nest(tried, "pair", "method")
        runs = {label: PairRuns(pairs(*self.pairs[label]), rates[label], lines) for label, lines in ends.items()}
        figure = draw.curves([_plot(label, duel) for label, duel in runs.items()], draw.styles(METHODS))
        return Findings([self._table(runs)], self.claims(runs), {self.stem: figure}, [NOTE])

    def end(self, group: Group) -> float:
        """The distance |x| after the last round of the first seed."""
        value = self.measure(group.runs[0], "end")
        return float("nan") if value is None else value

    def claims(self, runs: Mapping[str, PairRuns]) -> list[Claim]:
        """The claims of Sec. 4.1 for each pair of clients, and that of `_limits`.

        runs: label of a pair -> runs.
        """
        claims = []
        for label, duel in runs.items():
            delta, zeta = self.pairs[label]
            ends = f"|x| at the end: PFL {duel.end('PFL'):.2g}, SFL {duel.end('SFL'):.2g}"
            if zeta == 0:
                spent = {name: duel.rounds_to(name, EXACT) for name in METHODS}
                evidence = f"rounds to |x| = {EXACT:g}: PFL {spent['PFL']:g}, SFL {spent['SFL']:g}"
                claims.append(Claim(f"{label}: SFL is faster", spent["SFL"] < spent["PFL"], evidence))
            elif delta == 0:
                holds = duel.end("PFL") < EXACT and duel.end("SFL") > 1e-4 * zeta
                claims.append(Claim(f"{label}: PFL reaches the optimum, SFL does not", holds, ends))
            else:
                goal = 1.5 * duel.end("PFL")
                spent = {name: duel.rounds_to(name, goal) for name in METHODS}
                evidence = f"{ends}; rounds to |x| = {goal:.2g}: PFL {spent['PFL']:g}, SFL {spent['SFL']:g}"
                holds = duel.end("SFL") < duel.end("PFL") and spent["SFL"] < spent["PFL"]
                claims.append(Claim(f"{label}: SFL is faster and ends nearer to the optimum", holds, evidence))
        return [*claims, self._limits(runs)]

    def _limits(self, runs: Mapping[str, PairRuns]) -> Claim:
        """The claim, not in the paper, that PFL (FedAvg) ends at `predicted_limit`, for learning rates from 0.03 on.

        runs: label of a pair of clients -> runs.
        """
        off = [
            abs(self.end(group) - predicted_limit(duel.clients, lr)) / max(duel.clients[0][1], 1)
            for duel in runs.values()
            for lr, group in duel.rates["PFL"].items()
            if lr >= 0.03  # with smaller rates, 500 rounds do not reach the limit
        ]
        text = (
            "PFL ends at the minimum of the surrogate sum_i w_i f_i, w_i = (1 - (1 - 2 eta A_i)^K)/(2 eta A_i), "
            "for f_i(x) = A_i x^2 + B_i x, learning rate eta and K local steps"
        )
        evidence = f"{len(off)} runs, at most {max(off):.1g} apart, relative to max(ζ, 1)"
        return Claim(text, max(off) < 1e-9, evidence)

    def _table(self, runs: Mapping[str, PairRuns]) -> ReportTable:
        rows = [
            {
                "block": label,
                "method": name,
                "lr": duel.rate(name),
                "end": last_k(duel.best[name], DISTANCE, LAST),
                "predicted": predicted_limit(duel.clients, duel.rate(name)) if name == "PFL" else float("nan"),
                "rounds": duel.rounds_to(name, 0.1),
            }
            for label, duel in runs.items()
            for name in METHODS
        ]
        columns = [
            Column("method", "method"),
            Column("lr", "best lr", lambda v: f"{v:g}", None, True),
            Column("end", f"|x|, last {LAST} rounds", _spread, "min", True),
            Column("predicted", "PFL's limit", lambda v: number(v, 3), None, True),
            Column("rounds", "rounds to 0.1", cost_or_dash, "min", True),
        ]
        return ReportTable(
            self.stem,
            "|x|, the distance to x* = 0, as mean ± std over rounds and seeds. PFL's limit: |x| after infinitely many "
            "rounds.",
            columns,
            rows,
        )


NOTE = (
    "ζ: heterogeneity of the gradients at the optimum, δ: of the Hessians; PFL is deterministic here (both clients, "
    "full batches), so that one seed is run and its band in the figure is a line"
)


def _plot(label: str, duel: PairRuns) -> draw.Plot:
    """The panel of |x| over rounds for one pair of clients.

    If both methods converge to x*, which takes few rounds, only the first six are shown.
    """
    from papers import draw

    if duel.exact:
        return draw.Plot(label, duel.best, DISTANCE, limits=(EXACT / 10, 20), right=6, start=10.0)
    return draw.Plot(label, duel.best, DISTANCE, limits=(1e-5 * max(duel.clients[0][1], 1.0), 20), start=10.0)


def _spread(stat: Stat) -> str:
    return number(stat.mean, 3) + (f" ± {number(stat.std, 2)}" if stat.std > 0 else "")


@EXPERIMENTS.register("sfl/fig1", paper="SFL [2] fig. 1")
class Fig1(Simulations):
    """PFL (parallel: FedAvg) and SFL on two quadratics, in four groups of growing heterogeneity."""

    pairs: ClassVar = {
        "group 1: ζ 0, δ 0": (0.0, 0.0),
        "group 2: ζ 1, δ 0": (0.0, 1.0),
        "group 3: ζ 1, δ 1/3": (1 / 3, 1.0),
        "group 4: ζ 1, δ 1": (1.0, 1.0),
    }
    axes: ClassVar = axes(pairs)
    stem = "fig1"


@EXPERIMENTS.register("sfl/fig6", paper="SFL [2] fig. 6")
class Fig6(Simulations):
    """PFL (parallel: FedAvg) and SFL on two quadratics, nine combinations of gradient and Hessian heterogeneity."""

    pairs: ClassVar = {
        f"δ {word}, ζ {zeta:g}": (delta, zeta)
        for word, delta in (("0", 0.0), ("1/3", 1 / 3), ("1", 1.0))
        for zeta in (1.0, 10.0, 100.0)
    }
    axes: ClassVar = axes(pairs)
    stem = "fig6"
