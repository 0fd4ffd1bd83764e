"""FedACS [3] (Weng, Ren, Xiao & Skoglund 2025): experiments on quadratics, figures 4 and 7, with limits by eq. 39."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim
from papers.fedacs_tables import LOOKS, METHODS
from papers.lines import Lines, Values
from papers.statistics import effective_count
from papers.texts import listing, ordered
from raylfl.core.arrays import Floats
from raylfl.report.runs import Group, RunRecord
from raylfl.report.tables import Column
from raylfl.report.wording import number

if TYPE_CHECKING:
    from papers.probes.quadratics import TracedQuadratics

DISTANCE = "global/distance_abs"
DIM = 10
SMOOTHED = "the curves are trailing moving averages over {} rounds"


def _short(value: float) -> str:
    return number(0.0 if abs(value) < 1e-12 else value, 3)


_text_of = partial(listing, show="{:.3f}".format, between=": ", end="; ")


def limit_measures(tail: int) -> dict[str, Callable[[RunRecord], float]]:
    """The measures of a run over its last `tail` rounds: means of |x_r - x*| and of each coordinate of x_r; noise.

    noise: the standard error of the mean of x_r, as a length; correlated rounds count as fewer independent ones.
    """
    names = {"distance": DISTANCE} | {f"x{j}": f"test/x{j}" for j in range(DIM)}

    def noise(run: RunRecord) -> float:
        columns = [run.column(f"test/x{j}")[-tail:] for j in range(DIM)]
        return math.sqrt(sum(np.var(x, ddof=1) / effective_count(x) for x in columns))

    means = {name: lambda run, m=metric: float(run.column(m)[-tail:].mean()) for name, metric in names.items()}
    return {"noise": noise, **means}


def data_of(config: Mapping[str, Any]) -> TracedQuadratics:
    from papers.probes.quadratics import TracedQuadratics
    from raylfl.config.load import load_config

    return TracedQuadratics(**load_config(config).resolved["data"]["init_args"])


def predicted_limit(config: Mapping[str, Any], tail: int) -> Floats | None:
    """The limit [d] of E[x_r] at the run's step size that eq. 39 of FedACS predicts, for f_m(x) = |x - E_m|^2 / 2.

    If the system changes, the matrices M and vectors v of eqs. 34-35 are averaged over the last `tail` rounds. None for
    methods and local steps that eq. 33 does not have.
    """
    from raylfl.config.load import load_config
    from raylfl.experiment.assemble import assemble
    from raylfl.runtime.round.plan import Planner
    from raylfl.theory.fedacs import mean_step
    from raylfl.theory.quadratic import QuadraticProblem

    loaded = load_config(config)
    experiment, rounds = assemble(loaded), loaded.resolved["rounds"]
    if experiment.rule.momentum or experiment.rule.lr_schedule.over_steps(1) != 1.0:
        return None
    centres = data_of(config).centres.double().numpy()
    count, dim = centres.shape
    hessians = np.broadcast_to(np.eye(dim), (count, dim, dim)).copy()
    problem = QuadraticProblem(hessians, centres, np.zeros(count), np.full(count, 1 / count))
    planner = Planner(experiment)
    steps_of: dict[bytes, tuple[Floats, Floats]] = {}
    matrix, vector = np.zeros((dim, dim)), np.zeros(dim)
    for r in range(max(rounds - tail, 0), rounds):
        c, (steps, _) = planner.system(r), planner.steps(r, planner.everyone)
        shares = planner.expected_coefficients(c, {})
        if shares is None:
            return None
        eta, prox = experiment.algorithm.step_length(c), experiment.algorithm.proximal
        key = shares.tobytes() + steps.tobytes() + np.float64(eta).tobytes()
        if key not in steps_of:
            steps_of[key] = mean_step(problem, shares, steps, eta, prox)
        matrix, vector = matrix + steps_of[key][0], vector + steps_of[key][1]
    return np.asarray(np.linalg.solve(matrix, vector), dtype=np.float64)


class Quadratics(Lines):
    """Several methods on the quadratics of fig. 4, in several systems; tail: the last rounds that are averaged."""

    scales, base, curves, cells = (), ("reproduce/fedacs_fig4",), (DISTANCE,), "label"
    panel, metrics = "system", (DISTANCE,)
    caption = "Over the last {0.tail} rounds. Predicted: the bias by eq. 39, at the step size of the runs."
    columns = (
        Column("distance", "mean of |x - x*|", _short, "min", True),
        Column("bias", "|mean of x - x*|", _short, "min", True),
        Column("predicted", "predicted", _short, None, True),
    )
    tail: ClassVar[int]

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        (run,) = group.runs
        numbers = {name: self.measure(run, name) or 0.0 for name in self.measures}
        mean = np.array([numbers[f"x{j}"] for j in range(DIM)])
        optimum, predicted = data_of(run.config).optimum().numpy(), predicted_limit(run.config, self.tail)
        expected = np.full(DIM, np.nan) if predicted is None else predicted
        pairs = {"bias": (mean, optimum), "predicted": (expected, optimum), "off": (mean, expected)}
        apart = {name: float(np.linalg.norm(x - y)) for name, (x, y) in pairs.items()}
        return numbers | apart | {"start": float(np.linalg.norm(optimum))}  # x_0 = 0

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        start = lines["FedACS"]["start"]
        return {"start": start, "limits": (0.02, 1.0), "window": self.options["rounds"] // 50}


@EXPERIMENTS.register("fedacs/fig4", paper="FedACS [3] fig. 4")
class Fig4(Quadratics):
    """Distance to the optimum of FedAvg with four local solvers and of FedACS, in three systems."""

    axes: ClassVar = {
        "system": {
            f"{name}: {text}": {"base": [f"preset/fedacs_fig4_{name}"]}
            for name, text in (("left", "equal clients"), ("middle", "static"), ("right", "redrawn every round"))
        },
        "method": {
            "FedAvg, SGD": {},
            "FedAvg, proximal": {"algorithm": {"name": "fedprox", "mu": 1.0, "aggregate": "anonymous_uniform"}},
            "FedAvg, lr decay": {"local.lr_schedule": {"name": "step_exponential", "decay": 0.995}},
            "FedAvg, momentum": {"local.momentum": 0.3},
            "FedACS": {"algorithm.name": "fedacs"},
        },
    }
    looks: ClassVar = dict(zip(axes["method"], ("fedavg", "fedprox", "decay", "fedavgm", "fedacs"), strict=True))
    options: ClassVar = {"rounds": 800}
    tail, stem, notes = 400, "fig4", [SMOOTHED.format(16)]
    measures: ClassVar = limit_measures(tail)

    def claims(self, values: Values) -> list[Claim]:
        left, *others = ({name: of_line["distance"] for name, of_line in lines.items()} for lines in values.values())
        text = "left: every method ends near the optimum (within 0.1)"
        claims = [Claim(text, max(left.values()) < 0.1, _text_of(left))]
        for panel, distances in zip(("middle", "right"), others, strict=True):
            fedacs, other = distances.pop("FedACS"), min(distances.values())
            text = f"{panel}: only FedACS ends near the optimum (within 0.1; every other method more than twice as far)"
            evidence = f"FedACS: {fedacs:.3f}; the nearest other: {other:.3f}"
            claims.append(Claim(text, fedacs < 0.1 and other > 2 * fedacs, evidence))
        return [*claims, _prediction_claim(values)]


@EXPERIMENTS.register("fedacs/fig7", paper="FedACS [3] fig. 7")
class Fig7(Quadratics):
    """Bias of six methods with equal effective steps, in a static and a dynamic system."""

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
    tail, stem, notes = 2500, "fig7", [SMOOTHED.format(60)]
    measures: ClassVar = limit_measures(tail)

    def claims(self, values: Values) -> list[Claim]:
        claims = []
        for panel, lines in values.items():
            bias = {name: of_line["bias"] for name, of_line in lines.items()}
            evidence = _text_of(ordered(bias))
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
        return [*claims, _prediction_claim(values)]


def _prediction_claim(values: Values) -> Claim:
    """The claim that methods end where eq. 39 predicts, within three standard errors of their mean iterate."""
    predicted = {
        f"{panel.split(':')[0]}, {name}": of_line
        for panel, lines in values.items()
        for name, of_line in lines.items()
        if math.isfinite(of_line["off"])
    }
    off = {name: of_line["off"] / max(of_line["noise"], 1e-9) for name, of_line in predicted.items()}
    worst = max(off, key=lambda name: off[name])
    text = "every method whose limit eq. 39 gives ends there (within three standard errors of its mean iterate)"
    evidence = f"{len(off)} runs; largest distance: {off[worst]:.1f} standard errors, {predicted[worst]['off']:.3f}"
    return Claim(text, off[worst] < 3, f"{evidence} ({worst})")
