"""FedACS [3] (Weng, Ren, Xiao & Skoglund 2025): experiments on quadratics, figures 4 and 7."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim, Findings
from papers.choice import plain
from papers.fedacs_limits import DIM, DISTANCE, Limit, limit_measures
from papers.fedacs_tables import LOOKS, METHODS
from papers.grid import Grid, Point, nest
from papers.run_cache import RunCache
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number


class Quadratics(Grid):
    """A figure of several methods on the quadratics of fig. 4, in several systems of heterogeneity.

    looks: name of a method -> the method whose line style it has. tail: the number of last rounds that are averaged.
    stem: the figure's file name.
    """

    scales, base, curves = (), ("reproduce/fedacs_fig4",), (DISTANCE,)
    looks: ClassVar[Mapping[str, str]]
    tail: ClassVar[int]
    stem: ClassVar[str]

    def cell(self, point: Point) -> dict[str, Any]:
        return {"run": plain(self.label(point))}

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        panels = nest(self.groups(cache), "system", "method")
        limits = {panel: {name: self.limit(group) for name, group in lines.items()} for panel, lines in panels.items()}
        optimum = next(iter(limits.values()))["FedACS"].optimum  # the same in all runs
        start = float(np.linalg.norm(optimum))  # x_0 = 0
        window, shown = self.options["rounds"] // 50, (0.02, 1.0)
        plots = [
            draw.Plot(panel, lines, DISTANCE, start=start, limits=shown, window=window)
            for panel, lines in panels.items()
        ]
        figure = draw.curves(plots, draw.styles(self.looks))
        note = f"the curves are trailing moving averages over {window} rounds"
        return Findings([self._table(limits)], self.claims(limits), {self.stem: figure}, [note])

    def limit(self, group: Group) -> Limit:
        (run,) = group.runs
        numbers = {name: self.measure(run, name) or 0.0 for name in self.measures}
        mean = np.array([numbers[f"x{j}"] for j in range(DIM)])
        return Limit(run.config, self.tail, numbers["distance"], numbers["noise"], mean)

    @abstractmethod
    def claims(self, limits: Mapping[str, Mapping[str, Limit]]) -> list[Claim]:
        """The claims of the paper, judged by measured limits.

        limits: system -> method -> limit.
        """

    def _table(self, limits: Mapping[str, Mapping[str, Limit]]) -> ReportTable:
        rows = [
            {
                "block": panel,
                "method": name,
                "distance": limit.distance,
                "bias": limit.bias,
                "predicted": limit.predicted_bias,
            }
            for panel, lines in limits.items()
            for name, limit in lines.items()
        ]
        columns = [Column("method", "method")]
        columns += [
            Column("distance", "mean of |x - x*|", _short, "min", True),
            Column("bias", "|mean of x - x*|", _short, "min", True),
            Column("predicted", "predicted", _short, None, True),
        ]
        caption = f"Over the last {self.tail} rounds. Predicted: the bias by eq. 39, at the step size of the runs."
        return ReportTable(self.stem, caption, columns, rows)


@EXPERIMENTS.register("fedacs/fig4", paper="FedACS [3] fig. 4")
class Fig4(Quadratics):
    """Distance to the optimum of FedAvg with four local solvers and of FedACS, in three systems.

    The systems are equal clients, clients with unequal links and local steps, and such clients redrawn in every round.
    """

    axes: ClassVar = {
        "system": {
            "left: equal clients": {"base": ["preset/fedacs_fig4_left"]},
            "middle: static": {"base": ["preset/fedacs_fig4_middle"]},
            "right: redrawn every round": {"base": ["preset/fedacs_fig4_right"]},
        },
        "method": {
            "FedAvg, SGD": {},
            "FedAvg, proximal": {
                "algorithm.name": "fedprox",
                "algorithm.mu": 1.0,
                "algorithm.aggregate": "anonymous_uniform",
            },
            "FedAvg, lr decay": {"local.lr_schedule": {"name": "step_exponential", "decay": 0.995}},
            "FedAvg, momentum": {"local.momentum": 0.3},
            "FedACS": {"algorithm.name": "fedacs"},
        },
    }
    looks: ClassVar = {
        "FedAvg, SGD": "fedavg",
        "FedAvg, proximal": "fedprox",
        "FedAvg, lr decay": "decay",
        "FedAvg, momentum": "fedavgm",
        "FedACS": "fedacs",
    }
    options: ClassVar = {"rounds": 800}
    tail, stem = 400, "fig4"
    measures: ClassVar = limit_measures(tail)

    def claims(self, limits: Mapping[str, Mapping[str, Limit]]) -> list[Claim]:
        left, middle, right = limits.values()
        near = {name: limit.distance for name, limit in left.items()}
        claims = [
            Claim("left: every method ends near the optimum (within 0.1)", max(near.values()) < 0.1, _text_of(near))
        ]
        for panel, lines in (("middle", middle), ("right", right)):
            others = min(limit.distance for name, limit in lines.items() if name != "FedACS")
            fedacs = lines["FedACS"].distance
            text = f"{panel}: only FedACS ends near the optimum (within 0.1; every other method more than twice as far)"
            evidence = f"FedACS: {fedacs:.3f}; the nearest other: {others:.3f}"
            claims.append(Claim(text, fedacs < 0.1 and others > 2 * fedacs, evidence))
        return [*claims, _prediction_claim(limits)]


@EXPERIMENTS.register("fedacs/fig7", paper="FedACS [3] fig. 7")
class Fig7(Quadratics):
    """Bias of six methods with equal effective steps, in a static and a dynamic system.

    Bias: distance of the mean iterate from the optimum. Links and local steps of the clients are unequal; in the
    dynamic system they change in every round.
    """

    axes: ClassVar = {
        "system": {name: {"base": [f"preset/fedacs_{name}"]} for name in ("static", "dynamic")},
        "method": {name: METHODS[name] for name in ("FedAvg", "c-a-FedAvg", "FedVARP", "FedNova", "FedAU", "FedACS")},
    }
    looks: ClassVar = {name: LOOKS[name] for name in axes["method"]}
    # M = 6 draws with replacement from p = w, as assumed in app. I.2
    options: ClassVar = {
        "rounds": 3000,
        "data.init_args.num_clients": 20,
        "participation.replace": True,
        "local.lr": 0.002,
        "algorithm.calibrate": True,
    }
    tail, stem = 2500, "fig7"
    measures: ClassVar = limit_measures(tail)

    def claims(self, limits: Mapping[str, Mapping[str, Limit]]) -> list[Claim]:
        claims = []
        for panel, lines in limits.items():
            bias = {name: limit.bias for name, limit in lines.items()}
            evidence = _text_of(dict(sorted(bias.items(), key=lambda item: item[1])))
            between = (bias["c-a-FedAvg"], bias["FedVARP"])
            claims += [
                Claim(f"{panel}: FedACS has the smallest bias", min(bias.values()) == bias["FedACS"], evidence),
                Claim(f"{panel}: FedAvg has the largest bias", max(bias.values()) == bias["FedAvg"], evidence),
                Claim(
                    f"{panel}: the biases of c-a-FedAvg and FedVARP are between those of FedACS and FedAvg",
                    bias["FedACS"] < min(between) and max(between) < bias["FedAvg"],
                    evidence,
                ),
            ]
        return [*claims, _prediction_claim(limits)]


def _prediction_claim(limits: Mapping[str, Mapping[str, Limit]]) -> Claim:
    """The claim that methods end where eq. 39 of FedACS predicts, within three standard errors of their mean iterate.

    limits: system -> method -> limit.
    """
    predicted = {
        f"{panel.split(':')[0]}, {name}": limit
        for panel, lines in limits.items()
        for name, limit in lines.items()
        if limit.predicted is not None
    }
    off = {name: limit.prediction_error / max(limit.noise, 1e-9) for name, limit in predicted.items()}
    worst = max(off, key=lambda name: off[name])
    text = "every method whose limit eq. 39 gives ends there (within three standard errors of its mean iterate)"
    evidence = (
        f"{len(off)} runs; largest distance: {off[worst]:.1f} standard errors, {predicted[worst].prediction_error:.3f}"
    )
    return Claim(text, off[worst] < 3, f"{evidence} ({worst})")


def _short(value: float) -> str:
    return number(0.0 if abs(value) < 1e-12 else value, 3)


def _text_of(values: Mapping[str, float]) -> str:
    return "; ".join(f"{name}: {value:.3f}" for name, value in values.items())
