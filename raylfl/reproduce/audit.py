"""An audit of contradictory public results: SCAFFOLD with few clients per round, FedNova with unequal data sizes.

Public code departs from the papers in ways that may explain the contradictions. Each departure is an option here, and
is run beside the published method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from raylfl.report.derived import Stat, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number
from raylfl.reproduce.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from raylfl.reproduce.choice import plain
from raylfl.reproduce.coverage import by_cell, gaps
from raylfl.reproduce.ledger import Row
from raylfl.reproduce.run_cache import RunCache
from raylfl.reproduce.setting import Setting, setting
from raylfl.reproduce.texts import ACCURACY, accuracy_text

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
    """The settings of SCAFFOLD as published, with departures and at ten times the rate, and of FedAvg and FedProx.

    rate: the local learning rate of all settings except the tenfold one.
    """
    lines = {**DEPARTURES, LONG: {"local.lr": TENFOLD * rate}, **CONTROLS}
    return [base.with_(name, {"algorithm.name": "scaffold", "local.lr": rate, **own}) for name, own in lines.items()]


@EXPERIMENTS.register("audit/scaffold", paper="SCAFFOLD in public code, on quadratics")
class ScaffoldAudit(PaperResult):
    """Distance to the optimum of SCAFFOLD with 2 of 20 clients a round: as published, and with three departures.

    The departures are those of public code, see `DEPARTED`. The problem is a random quadratic one.
    """

    def run(self, cache: RunCache) -> Findings:
        from raylfl.reproduce import draw

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

        at: name of a setting -> number of rounds -> relative distance to the optimum. start: that of the initial model.
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


class Network(PaperResult):
    """An audit with LeNet-5 on MNIST (at scale `smoke`: digits, 50 clients), under NIID-Bench's partitions.

    A row of the table is one method or variant. Rows and seeds can be run and published one by one; a claim is judged
    if all its rows have runs. A subclass without scales always has the sizes of the scale `smoke`, and all seeds.

    data: names of configs merged on top, for other data at scale `paper`. names: of the rows of the table.
    """

    data: ClassVar[Sequence[str]] = ()
    names: ClassVar[Sequence[str]]
    scales: ClassVar[tuple[str, ...]] = SCALES
    choices = ("method", "seed")

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        """The row of the table to which a run belongs, from the name of its folder."""
        return {"method": name.rpartition("-s")[0]}

    def whole(self) -> int:
        return len(self.names) * len(SEEDS)

    def missing(self, rows: Sequence[Row]) -> list[str]:
        return gaps({name: (plain(name),) for name in self.names}, by_cell(rows, "method"), len(SEEDS))

    def groups(self, cache: RunCache, settings: Sequence[Setting]) -> dict[str, Group]:
        """Method or variant -> its runs, for the settings that `--only` selects.

        One seed is run at scale `smoke`, and all seeds otherwise. An audit without scales always has all seeds.
        """
        chosen = [s for s in settings if cache.only.keeps(method=s.label)]
        found = cache.groups(chosen, cache.pick(SEEDS[:1], SEEDS) if self.scales else SEEDS)
        return {group.label: group for group in found}

    def base(self, cache: RunCache, options: Mapping[str, Any]) -> Setting:
        """The setting that all rows of the table share, with these options.

        At scale `smoke`, 40 epochs on the small set of digits have about as many local steps as ten epochs on MNIST.
        """
        smoke: dict[str, Any] = {"partition.min_size": 2, "participation.size": 5, "data.init_args.upscale": 28}
        smoke |= {"local.batch_size": 16, "local.epochs": 40}
        bases = ["reproduce/audit_network", *cache.pick(["reproduce/smoke"], [*self.data, "reproduce/paper"])]
        return setting("", bases, cache.pick(smoke, {}) | dict(options))

    def findings(
        self,
        groups: Mapping[str, Group],
        clients: str,
        data: str,
        claims: Sequence[Claim | None],
        lines: Mapping[str, str],
        notes: Sequence[str] = (),
    ) -> Findings:
        """The findings: a table of final accuracies, a figure over all rounds, and the claims that could be judged.

        clients, data: words for the clients of a round and for their data. claims: None for a claim without runs.
        lines: name of a curve -> the method whose style it has. notes: remarks for the reader.
        """
        from raylfl.reproduce import draw

        rows = [{"method": name, "accuracy": accuracy(group)} for name, group in groups.items()]
        columns = [Column("method", "method"), Column("accuracy", "accuracy", accuracy_text, "max", True)]
        caption = (
            f"Test accuracy in %, {clients}, {data}: mean ± std over seeds and the last tenth of the rounds. Diverged: "
            "at least one seed diverged."
        )
        table = ReportTable("accuracy", caption, columns, rows)
        plots = [draw.Plot(data, groups, ACCURACY, limits=(0.0, 100.0))]
        judged = [claim for claim in claims if claim is not None]
        return Findings([table], judged, {"accuracy": draw.curves(plots, draw.styles(lines), WIDE)}, notes)


@EXPERIMENTS.register("audit/scaffold-network", paper="SCAFFOLD in public code, on LeNet-5")
class ScaffoldNetwork(Network):
    """Test accuracy of SCAFFOLD with a tenth of the clients: as published, and with three departures.

    The departures are those of public code, see `DEPARTED`. LeNet-5 on MNIST, 100 clients with label skew.
    """

    names = tuple(LINES)

    def run(self, cache: RunCache) -> Findings:
        groups = self.groups(cache, scaffold_lines(self.base(cache, {}), 0.01))
        claims = [
            _gap("as published, SCAFFOLD is less than 2 points below FedAvg", groups, PLAIN, AVERAGE, -0.02, 1),
            _gap("a momentum of 0.9 in the local steps costs more than 10 points", groups, MOMENTUM, PLAIN, -1, -0.1),
            _gap("ten times the learning rate costs more than 10 points", groups, LONG, PLAIN, -1, -0.1),
            _gap("variates that start as the model cost less than 2 points", groups, MODEL, PLAIN, -0.02, 1),
            _gap(
                "a server variate divided by the received clients costs more than 10 points",
                groups,
                RECEIVED,
                PLAIN,
                -1,
                -0.1,
            ),
            _guesses(
                "both variate departures together (variates that start as the model, server variate divided by the "
                "received clients) are no better than a guess at the end",
                groups,
                PAIR,
            ),
            _guesses("all three departures together are no better than a guess at the end", groups, ALL),
            _gap(
                "FedAvg with a momentum of 0.9 is less than 2 points below FedAvg without",
                groups,
                AVERAGE_MOMENTUM,
                AVERAGE,
                -0.02,
                1,
            ),
        ]
        return self.findings(groups, "10 % of the clients a round", "Dirichlet(0.5)", claims, LINES, [DEPARTED])


@EXPERIMENTS.register("audit/scaffold-digits", paper="SCAFFOLD in public code, LeNet-5 on digits")
class ScaffoldDigits(ScaffoldNetwork):
    """Test accuracy of SCAFFOLD on the bundled digits with 5 of 50 clients: as published, and with three departures.

    The same as `ScaffoldNetwork` on smaller data.
    """

    scales = ()


@EXPERIMENTS.register("audit/fednova-network", paper="FedNova under quantity skew, on LeNet-5")
class FedNovaNetwork(Network):
    """Test accuracy of FedNova, ten clients of unequal sizes p_i, with and without the factor N sum p_i^2 in its step.

    N: number of clients; p_i: client i's share of the samples. FedNova's step has this factor if clients solve their
    local problems within a round. LeNet-5 on MNIST.

    options: values of config keys that all rows share.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    clients, alpha = 10, 0.5
    factor = clients * (alpha + 1) / (clients * alpha + 1)  # E[N sum p_i^2] of Dirichlet(alpha)
    names = ("FedNova", f"FedNova, gamma = 1/{factor:g}", AVERAGE)

    def run(self, cache: RunCache) -> Findings:
        clients, alpha, factor = self.clients, self.alpha, self.factor
        system = {"partition": {"name": "quantity", "alpha": alpha}, "num_clients": clients}
        base = self.base(cache, {"rounds": 50, "participation.size": clients, **self.options}).with_("", system)
        forms: Sequence[Mapping[str, Any]] = ({}, {"algorithm.gamma": 1.0 / factor}, CONTROLS[AVERAGE])
        lines = {name: {"algorithm.name": "fednova", **own} for name, own in zip(self.names, forms, strict=True)}
        groups = self.groups(cache, [base.with_(name, own) for name, own in lines.items()])
        plain, divided, average = lines
        claims = [
            _gap("FedNova is more than 10 points below FedAvg", groups, plain, average, -1, -0.1),
            _gap(
                f"with its step divided by the mean of N sum p_i^2 (gamma = 1/{factor:g}), FedNova is within 2 points "
                "of FedAvg",
                groups,
                divided,
                average,
                -0.02,
                0.02,
            ),
        ]
        looks = dict(zip(lines, ("fednova", "focus", "fedavg"), strict=True))
        return self.findings(groups, "all of ten clients a round", "sizes from Dirichlet(0.5)", claims, looks)


@EXPERIMENTS.register("audit/fednova-cifar", paper="FedNova under quantity skew, LeNet-5 on CIFAR-10")
class FedNovaCifar(FedNovaNetwork):
    """Test accuracy of FedNova on CIFAR-10, ten clients of sizes p_i, with and without the factor N sum p_i^2.

    The setting in which a public table has 10.0 % for FedNova: momentum 0.9 and weight decay in the local steps. Ten
    of the table's fifty rounds, because one takes a minute.
    """

    data = ("data/cifar10",)
    options: ClassVar = {
        "rounds": 10,
        "eval.every": 1,
        "checkpoint.every": 1,
        "local.momentum": 0.9,
        "local.weight_decay": 1e-5,
    }


@EXPERIMENTS.register("audit/fednova-digits", paper="FedNova under quantity skew, LeNet-5 on digits")
class FedNovaDigits(FedNovaNetwork):
    """Test accuracy of FedNova on digits, ten clients of unequal sizes p_i, with and without the factor N sum p_i^2.

    The same as `FedNovaNetwork` on smaller data.
    """

    scales = ()


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


def accuracy(group: Group) -> Stat:
    """The test accuracy over the last tenth of the rounds, as mean and std over rounds and seeds."""
    return last_k(group, ACCURACY, max(1, group.runs[0].config["rounds"] // 10))


def _gap(text: str, groups: Mapping[str, Group], line: str, other: str, low: float, high: float) -> Claim | None:
    """The claim low < a - b < high about the final accuracies a of `line` and b of `other`; None without runs of both.

    The accuracy of a setting with a diverged run counts as 0.
    """
    if line not in groups or other not in groups:
        return None
    ours, theirs = (accuracy(groups[name]).mean for name in (line, other))
    gap = (ours if math.isfinite(ours) else 0.0) - (theirs if math.isfinite(theirs) else 0.0)
    told = "; ".join(
        f"{name}: {100 * value:.1f} %" if math.isfinite(value) else f"{name}: diverged"
        for name, value in ((line, ours), (other, theirs))
    )
    return Claim(text, low < gap < high, told)


def _guesses(text: str, groups: Mapping[str, Group], line: str) -> Claim | None:
    """The claim that the final accuracy of `line` is at most 12 %, for ten classes; None without runs of it.

    A setting with a diverged run counts as one that guesses.
    """
    if line not in groups:
        return None
    level = accuracy(groups[line]).mean
    told = f"{line}: {100 * level:.1f} %" if math.isfinite(level) else f"{line}: diverged"
    return Claim(text, not level > 0.12 or not math.isfinite(level), told)


def _short(value: float) -> str:
    return number(value, 2)
