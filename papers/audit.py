"""An audit of contradictory public results: the departures of public code from SCAFFOLD, and a test on quadratics.

Each departure is an option here, and is run beside the published method. `audit_networks` has the runs with networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number
from papers.base import EXPERIMENTS, Claim, Findings, PaperResult
from papers.run_cache import RunCache
from papers.setting import Setting, setting

DISTANCE = "global/distance"
PLAIN, MOMENTUM, LONG = "SCAFFOLD", "SCAFFOLD, momentum 0.9", "SCAFFOLD, ten times the rate"
MODEL, RECEIVED = "SCAFFOLD, variates from the model", "SCAFFOLD, variate over the received"
PAIR, ALL = "SCAFFOLD, variates from the model and over the received", "SCAFFOLD, all three departures"
AVERAGE, AVERAGE_MOMENTUM, PROX = "FedAvg", "FedAvg, momentum 0.9", "FedProx"
TENFOLD = 10.0  # 1 / (1 - 0.9): the total step that momentum 0.9 makes along one gradient
DEPARTURES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    MOMENTUM: {"algorithm.momentum": 0.9},
    MODEL: {"algorithm.variates": "model"},
    RECEIVED: {"algorithm.variate_divisor": "received"},
    PAIR: {"algorithm.variates": "model", "algorithm.variate_divisor": "received"},
    ALL: {"algorithm.momentum": 0.9, "algorithm.variates": "model", "algorithm.variate_divisor": "received"},
}
DEPARTED = (
    "the three departures of public code: a momentum of 0.9 in the local steps, applied to the raw gradient; control "
    "variates that start as the initial model instead of 0 ('variates from the model'); changes of the server's "
    "variate divided by the number of received clients instead of all clients ('variate over the received')"
)
CONTROLS: dict[str, dict[str, Any]] = {
    AVERAGE: {"algorithm.name": "fedavg"},
    AVERAGE_MOMENTUM: {"algorithm.name": "fedavg", "local.momentum": 0.9},
    PROX: {"algorithm.name": "fedprox"},
}
LINES = {PLAIN: "scaffold", MOMENTUM: "fedavgm", LONG: "fedacs", MODEL: "focus", RECEIVED: "fedaware"}
LINES |= {PAIR: "fedau", ALL: "fedvarp", AVERAGE: "fedavg", AVERAGE_MOMENTUM: "mifa", PROX: "fedprox"}
EARLY, LATE = 100, 300  # rounds
WIDE = (6.4, 3.2)  # inches: a panel below the long names of the lines
SEEDS = (0, 1, 2)


def scaffold_lines(base: Setting, rate: float) -> list[Setting]:
    """The settings of the audit: SCAFFOLD as published, with departures, at ten times the rate; FedAvg; FedProx.

    rate: the local learning rate of all settings except the one at ten times the rate.
    """
    lines = {**DEPARTURES, LONG: {"local.lr": TENFOLD * rate}, **CONTROLS}
    return [base.with_(name, {"algorithm.name": "scaffold", "local.lr": rate, **own}) for name, own in lines.items()]


@EXPERIMENTS.register("audit/scaffold", paper="SCAFFOLD in public code, on quadratics")
class ScaffoldAudit(PaperResult):
    """Distance to the optimum of SCAFFOLD with 2 of 20 clients a round: as published, and with three departures.

    The departures are those of public code, see `DEPARTED`. The problem is a random quadratic one.
    """

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        settings = scaffold_lines(setting("", ["reproduce/audit_scaffold"]), 0.04)
        groups = {group.label: group for group in cache.groups(settings, SEEDS)}
        at = {name: {r: distance(group, r) for r in (EARLY, LATE)} for name, group in groups.items()}
        rows = [{"method": name, "early": at[name][EARLY], "late": at[name][LATE]} for name in groups]
        columns = [
            Column("method", "method"),
            Column("early", f"after {EARLY} rounds", _short, "min", True),
            Column("late", f"after {LATE} rounds", _short, "min", True),
        ]
        start = start_distance(groups[PLAIN].runs[0].config)
        caption = (
            f"Relative distance to the optimum, |x - x*|/|x*|: geometric mean over seeds; at the start {_short(start)}."
        )
        plots = [draw.Plot("2 of 20 clients a round", groups, DISTANCE, start=start)]
        figures = {"distance": draw.curves(plots, draw.styles(LINES), WIDE)}
        return Findings([ReportTable("distance", caption, columns, rows)], self.claims(at, start), figures, [DEPARTED])

    @staticmethod
    def claims(at: Mapping[str, Mapping[int, float]], start: float) -> list[Claim]:
        """The claims about why public tables show 10.0 % accuracy for SCAFFOLD, judged after EARLY and LATE rounds.

        at: name of a setting -> number of rounds -> relative distance to the optimum. start: the relative distance of
        the initial model.
        """

        def told(*names: str, after: int = LATE) -> str:
            return "; ".join(f"{name}: {_short(at[name][after])}" for name in names)

        follows = 0.5 < at[LONG][EARLY] / at[MOMENTUM][EARLY] < 2.0
        return [
            Claim(
                "as published, SCAFFOLD converges with a tenth of the clients in each round",
                at[PLAIN][LATE] < 1e-4,
                told(PLAIN),
            ),
            Claim(
                "with a momentum of 0.9 in the local steps SCAFFOLD does not converge",
                at[MOMENTUM][LATE] > 0.05,
                told(MOMENTUM, PLAIN),
            ),
            Claim(
                f"after {EARLY} rounds SCAFFOLD is as far from the optimum with this momentum as with ten times the "
                "learning rate (within a factor of 2)",
                follows,
                told(MOMENTUM, LONG, after=EARLY),
            ),
            Claim(
                "at the end it is more than 5 times nearer with ten times the learning rate than with momentum, so the "
                "longer step is not the only cause",
                at[LONG][LATE] < 0.2 * at[MOMENTUM][LATE],
                told(LONG, MOMENTUM),
            ),
            Claim(
                "a server variate divided by the received clients leaves SCAFFOLD more than 10 times as far from the "
                "optimum at the end",
                at[RECEIVED][LATE] > 10 * at[PLAIN][LATE],
                told(RECEIVED, PLAIN),
            ),
            Claim(
                "both variate departures together (variates that start as the model, server variate divided by the "
                "received clients) lead away from the optimum",
                at[PAIR][LATE] > start,
                f"{told(PAIR)}; at the start: {_short(start)}",
            ),
            Claim(
                "variates that start as the model, alone, change the distance at the end by less than a factor of 10",
                0.1 < at[MODEL][LATE] / at[PLAIN][LATE] < 10.0,
                told(MODEL, PLAIN),
            ),
        ]


def start_distance(config: Mapping[str, Any]) -> float:
    """The distance of the initial model to the optimum of random quadratics, divided by the optimum's norm."""
    from raylfl.data.quadratics import DenseQuadratics

    optimum = DenseQuadratics(**config["data"]["init_args"]).optimum().numpy()
    x0 = np.full_like(optimum, config["model"]["init_args"]["x0"])
    return float(np.linalg.norm(x0 - optimum) / np.linalg.norm(optimum))


def distance(group: Group, rounds: int) -> float:
    """The distance to the optimum after this many rounds, divided by the optimum's norm; geometric mean over seeds."""
    values = [run.column(DISTANCE)[:rounds][-1] for run in group.runs]
    return float(np.exp(np.log(values).mean()))


def _short(value: float) -> str:
    return number(value, 2)
