"""An audit of contradictory public results: SCAFFOLD in public code, and FedNova with clients of unequal data sizes.

Each departure of public code from SCAFFOLD is an option here, and is run beside the published method: on quadratics,
and with LeNet-5 under NIID-Bench's partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim, Findings
from papers.grid import Axis, Grid, Point
from papers.run_cache import RunCache
from papers.texts import ACCURACY, accuracy_text
from raylfl.report.derived import Stat, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number

DISTANCE = "global/distance"
PLAIN, MOMENTUM, LONG = "SCAFFOLD", "SCAFFOLD, momentum 0.9", "SCAFFOLD, ten times the rate"
MODEL, RECEIVED = "SCAFFOLD, variates from the model", "SCAFFOLD, variate over the received"
PAIR, ALL = "SCAFFOLD, variates from the model and over the received", "SCAFFOLD, all three departures"
AVERAGE, AVERAGE_MOMENTUM, PROX = "FedAvg", "FedAvg, momentum 0.9", "FedProx"
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
BOTH = (
    "both variate departures together (variates that start as the model, server variate divided by the "
    "received clients)"
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


def methods(rate: float, **more: Mapping[str, Any]) -> Axis:
    """The methods of the audit: SCAFFOLD as published, with departures, at ten times the rate; FedAvg; FedProx.

    A momentum of 0.9 makes ten steps along one gradient. rate: the local learning rate of the others. more: further
    options of the methods with these names.
    """
    named = {**DEPARTURES, LONG: {"local.lr": 10.0 * rate}, **CONTROLS}
    return {
        name: {"algorithm.name": "scaffold", "local.lr": rate, **options, **more.get(name, {})}
        for name, options in named.items()
    }


@EXPERIMENTS.register("audit/scaffold", paper="SCAFFOLD in public code, on quadratics")
class ScaffoldAudit(Grid):
    """Distance to the optimum of SCAFFOLD with 2 of 20 clients a round: as published, and with three departures.

    The departures are those of public code, see `DEPARTED`. The problem is a random quadratic one.
    """

    scales, seeds, base = (), SEEDS, ("reproduce/audit_scaffold",)
    axes: ClassVar = {"method": methods(0.04)}
    measures: ClassVar = {
        f"distance after {r}": lambda run, r=r: float(run.column(DISTANCE)[:r][-1]) for r in (EARLY, LATE)
    } | {"distance at the start": lambda run: start_distance(run.config)}

    def cell(self, point: Point) -> dict[str, Any]:
        return {"run": super().cell(point)["method"]}

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        groups = {point.method: group for point, group in self.groups(cache).items()}
        distances = {
            name: {r: self.mean(group, f"distance after {r}") for r in (EARLY, LATE)} for name, group in groups.items()
        }
        rows = [{"method": name, "early": values[EARLY], "late": values[LATE]} for name, values in distances.items()]
        columns = [
            Column("method", "method"),
            Column("early", f"after {EARLY} rounds", _short, "min", True),
            Column("late", f"after {LATE} rounds", _short, "min", True),
        ]
        start = self.mean(groups[PLAIN], "distance at the start")
        caption = (
            f"Relative distance to the optimum, |x - x*|/|x*|: geometric mean over seeds; at the start {_short(start)}."
        )
        plots = [draw.Plot("2 of 20 clients a round", groups, DISTANCE, start=start)]
        figures = {"distance": draw.curves(plots, draw.styles(LINES), WIDE)}
        return Findings(
            [ReportTable("distance", caption, columns, rows)], self.claims(distances, start), figures, [DEPARTED]
        )

    def mean(self, group: Group, name: str) -> float:
        """The geometric mean of a measure over seeds."""
        values = np.array([self.measure(run, name) for run in group.runs], dtype=np.float64)
        return float(np.exp(np.log(values).mean()))

    @staticmethod
    def claims(distances: Mapping[str, Mapping[int, float]], start: float) -> list[Claim]:
        """The claims about why public tables show 10.0 % accuracy for SCAFFOLD, judged after EARLY and LATE rounds.

        distances: name of a setting -> number of rounds -> relative distance to the optimum. start: that of the
        initial model.
        """

        def quote(*names: str, rounds: int = LATE) -> str:
            return "; ".join(f"{name}: {_short(distances[name][rounds])}" for name in names)

        late = {name: values[LATE] for name, values in distances.items()}
        return [
            Claim(
                "as published, SCAFFOLD converges with a tenth of the clients in each round",
                late[PLAIN] < 1e-4,
                quote(PLAIN),
            ),
            Claim(
                "with a momentum of 0.9 in the local steps SCAFFOLD does not converge",
                late[MOMENTUM] > 0.05,
                quote(MOMENTUM, PLAIN),
            ),
            Claim(
                f"after {EARLY} rounds SCAFFOLD is as far from the optimum with this momentum as with ten times the "
                "learning rate (within a factor of 2)",
                0.5 < distances[LONG][EARLY] / distances[MOMENTUM][EARLY] < 2.0,
                quote(MOMENTUM, LONG, rounds=EARLY),
            ),
            Claim(
                "at the end it is more than 5 times nearer with ten times the learning rate than with momentum, so the "
                "longer step is not the only cause",
                late[LONG] < 0.2 * late[MOMENTUM],
                quote(LONG, MOMENTUM),
            ),
            Claim(
                "a server variate divided by the received clients leaves SCAFFOLD more than 10 times as far from the "
                "optimum at the end",
                late[RECEIVED] > 10 * late[PLAIN],
                quote(RECEIVED, PLAIN),
            ),
            Claim(
                f"{BOTH} lead away from the optimum",
                late[PAIR] > start,
                f"{quote(PAIR)}; at the start: {_short(start)}",
            ),
            Claim(
                "variates that start as the model, alone, change the distance at the end by less than a factor of 10",
                0.1 < late[MODEL] / late[PLAIN] < 10.0,
                quote(MODEL, PLAIN),
            ),
        ]


def start_distance(config: Mapping[str, Any]) -> float:
    """The distance of the initial model to the optimum of random quadratics, divided by the optimum's norm."""
    from raylfl.data.quadratics import DenseQuadratics

    optimum = DenseQuadratics(**config["data"]["init_args"]).optimum().numpy()
    x0 = np.full_like(optimum, config["model"]["init_args"]["x0"])
    return float(np.linalg.norm(x0 - optimum) / np.linalg.norm(optimum))


def _short(value: float) -> str:
    return number(value, 2)


class NetworkAudit(Grid):
    """An audit with LeNet-5 on MNIST (at scale `smoke`: digits, 50 clients), under NIID-Bench's partitions.

    A row of the table is one method or variant. Rows and seeds can be run and published one by one; a claim is judged
    if all its rows have runs. A subclass without scales always has the sizes of the scale `smoke`, and all seeds.

    clients, words: the clients of a round and their data in words. gaps: text of a claim -> (a, b, low, high), the rows
    of whose final accuracies low < a - b < high is claimed. guesses: text of a claim -> a row with at most 12 %, as for
    a guess of ten classes. looks: name of a curve -> the method whose style it has.
    """

    base: ClassVar[Sequence[str]] = ("reproduce/audit_network",)
    seeds, choices = SEEDS, ("method", "seed")
    # 40 epochs on the small set of digits have about as many local steps as ten epochs on MNIST
    smoke: ClassVar = {"partition.min_size": 2, "participation.size": 5, "data.init_args.upscale": 28} | {
        "local.batch_size": 16,
        "local.epochs": 40,
    }
    clients: ClassVar[str] = "all of ten clients a round"
    words: ClassVar[str]
    gaps: ClassVar[Mapping[str, tuple[str, str, float, float]]]
    guesses: ClassVar[Mapping[str, str]] = {}
    notes: ClassVar[Sequence[str]] = ()
    looks: ClassVar[Mapping[str, str]] = LINES

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        groups = {point.method: group for point, group in self.groups(cache).items()}
        rows = [{"method": name, "accuracy": accuracy(group)} for name, group in groups.items()]
        columns = [Column("method", "method"), Column("accuracy", "accuracy", accuracy_text, "max", True)]
        caption = (
            f"Test accuracy in %, {self.clients}, {self.words}: mean ± std over seeds and the last tenth of the "
            "rounds. Diverged: at least one seed diverged."
        )
        plots = [draw.Plot(self.words, groups, ACCURACY, limits=(0.0, 100.0))]
        claims = [gap(text, groups, *judged) for text, judged in self.gaps.items()]
        claims += [guess(text, groups, line) for text, line in self.guesses.items()]
        figures = {"accuracy": draw.curves(plots, draw.styles(self.looks), WIDE)}
        table = ReportTable("accuracy", caption, columns, rows)
        return Findings([table], [claim for claim in claims if claim is not None], figures, self.notes)


STEPS = {
    "as published, SCAFFOLD is less than 2 points below FedAvg": (PLAIN, AVERAGE, -0.02, 1.0),
    "a momentum of 0.9 in the local steps costs more than 10 points": (MOMENTUM, PLAIN, -1.0, -0.1),
    "ten times the learning rate costs more than 10 points": (LONG, PLAIN, -1.0, -0.1),
    "FedAvg with a momentum of 0.9 is less than 2 points below FedAvg without": (AVERAGE_MOMENTUM, AVERAGE, -0.02, 1.0),
}


@EXPERIMENTS.register("audit/scaffold-network", paper="SCAFFOLD in public code, on LeNet-5")
class ScaffoldNetwork(NetworkAudit):
    """Test accuracy of SCAFFOLD with a tenth of the clients: as published, and with three departures.

    The departures are those of public code, see `DEPARTED`. LeNet-5 on MNIST, 100 clients with label skew.
    """

    axes: ClassVar = {"method": methods(0.01)}
    clients, words, notes = "10 % of the clients a round", "Dirichlet(0.5)", (DEPARTED,)
    gaps: ClassVar = STEPS | {
        "variates that start as the model cost less than 2 points": (MODEL, PLAIN, -0.02, 1.0),
        "a server variate divided by the received clients costs more than 10 points": (RECEIVED, PLAIN, -1.0, -0.1),
    }
    guesses: ClassVar = {
        f"{BOTH} are no better than a guess at the end": PAIR,
        "all three departures together are no better than a guess at the end": ALL,
    }


@EXPERIMENTS.register("audit/scaffold-digits", paper="SCAFFOLD in public code, LeNet-5 on digits")
class ScaffoldDigits(ScaffoldNetwork):
    """Test accuracy of SCAFFOLD on the bundled digits with 5 of 50 clients: as published, and with three departures.

    The same as `ScaffoldNetwork` on smaller data.
    """

    scales, base = (), (*NetworkAudit.base, "reproduce/smoke")


class ScaffoldAllClients(NetworkAudit):
    """The base of audits of SCAFFOLD in which all of ten clients take part in each round, with pixels in 0..1.

    The start of the control variates and their divisor then make no difference: momentum is the only departure left.
    As in the public tables, a run has 50 rounds, and FedAvg weights clients by data size. The weight decay of 1e-5 of
    the public tables is left out.
    """

    sizes: ClassVar = {"algorithm.aggregate": "weighted"}
    axes: ClassVar = {
        "method": {
            name: own
            for name, own in methods(0.01, **{AVERAGE: sizes, AVERAGE_MOMENTUM: sizes}).items()
            if name in (PLAIN, MOMENTUM, LONG, AVERAGE, AVERAGE_MOMENTUM)
        }
    }
    options: ClassVar[dict[str, Any]] = {"num_clients": 10, "participation.size": 10, "rounds": 50, "eval.every": 1}
    smoke: ClassVar = NetworkAudit.smoke | {"checkpoint.every": 0}
    paper: ClassVar = {"checkpoint.every": 1, "data.init_args.mean": [0.0], "data.init_args.std": [1.0]}
    gaps: ClassVar = STEPS


@EXPERIMENTS.register("audit/scaffold-classes", paper="SCAFFOLD in public code, two classes per client")
class ScaffoldClasses(ScaffoldAllClients):
    """Test accuracy of SCAFFOLD on FashionMNIST, ten clients with two classes each: as published, and with momentum.

    A replication of NIID-Bench has 10.0 % for SCAFFOLD in this setting, and 81.0 % for FedAvg.
    """

    files, words = ("data/fashion_mnist",), "two classes per client"
    options: ClassVar = ScaffoldAllClients.options | {"partition": {"name": "classes", "classes": 2}}


@EXPERIMENTS.register("audit/scaffold-dirichlet", paper="SCAFFOLD in public code, Dirichlet(0.5)")
class ScaffoldDirichlet(ScaffoldAllClients):
    """Test accuracy of SCAFFOLD on MNIST, ten clients with Dirichlet(0.5) label skew: as published, and with momentum.

    Public tables have 99.0, 99.0 and 61.99 % for SCAFFOLD in this setting, and 98.9 % for FedAvg.
    """

    words = "Dirichlet(0.5)"
    options: ClassVar = ScaffoldAllClients.options | {
        "partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 10, "balance": "cap"}
    }


CLIENTS, ALPHA = 10, 0.5
FACTOR = CLIENTS * (ALPHA + 1) / (CLIENTS * ALPHA + 1)  # E[N sum p_i^2] of Dirichlet(alpha)
WITHIN = (
    f"with its step divided by the mean of N sum p_i^2 (gamma = 1/{FACTOR:g}), FedNova is within 2 points of FedAvg"
)
NOVA, DIVIDED = "FedNova", f"FedNova, gamma = 1/{FACTOR:g}"


@EXPERIMENTS.register("audit/fednova-network", paper="FedNova under quantity skew, on LeNet-5")
class FedNovaNetwork(NetworkAudit):
    """Test accuracy of FedNova, ten clients of unequal sizes p_i, with and without the factor N sum p_i^2 in its step.

    N: number of clients; p_i: client i's share of the samples. If clients solve their local problems within a round,
    FedNova's step is the mean update times this factor. LeNet-5 on MNIST.
    """

    words = "sizes from Dirichlet(0.5)"
    axes: ClassVar = {
        "method": {
            NOVA: {"algorithm.name": "fednova"},
            DIVIDED: {"algorithm.name": "fednova", "algorithm.gamma": 1.0 / FACTOR},
            AVERAGE: CONTROLS[AVERAGE],
        }
    }
    options: ClassVar[dict[str, Any]] = {
        "rounds": 50,
        "num_clients": CLIENTS,
        "participation.size": CLIENTS,
        "partition": {"name": "quantity", "alpha": ALPHA},
    }
    gaps: ClassVar = {
        "FedNova is more than 10 points below FedAvg": (NOVA, AVERAGE, -1.0, -0.1),
        WITHIN: (DIVIDED, AVERAGE, -0.02, 0.02),
    }
    looks: ClassVar = {NOVA: "fednova", DIVIDED: "focus", AVERAGE: "fedavg"}


@EXPERIMENTS.register("audit/fednova-cifar", paper="FedNova under quantity skew, LeNet-5 on CIFAR-10")
class FedNovaCifar(FedNovaNetwork):
    """Test accuracy of FedNova on CIFAR-10, ten clients of sizes p_i, with and without the factor N sum p_i^2.

    The setting in which a public table has 10.0 % for FedNova: momentum 0.9 and weight decay in the local steps. A run
    has ten rounds instead of the fifty of this table, because a round takes a minute.
    """

    files = ("data/cifar10",)
    options: ClassVar = (
        FedNovaNetwork.options
        | {"rounds": 10, "eval.every": 1, "checkpoint.every": 1}
        | {
            "local.momentum": 0.9,
            "local.weight_decay": 1e-5,
        }
    )


@EXPERIMENTS.register("audit/fednova-digits", paper="FedNova under quantity skew, LeNet-5 on digits")
class FedNovaDigits(FedNovaNetwork):
    """Test accuracy of FedNova on digits, ten clients of unequal sizes p_i, with and without the factor N sum p_i^2.

    The same as `FedNovaNetwork` on smaller data.
    """

    scales, base = (), (*NetworkAudit.base, "reproduce/smoke")


def accuracy(group: Group) -> Stat:
    """The test accuracy over the last tenth of the rounds, as mean and std over rounds and seeds."""
    return last_k(group, ACCURACY, max(1, group.runs[0].config["rounds"] // 10))


def gap(text: str, groups: Mapping[str, Group], line: str, other: str, low: float, high: float) -> Claim | None:
    """The claim low < a - b < high about the final accuracies a of `line` and b of `other`; None without runs of both.

    The accuracy of a setting with a diverged run counts as 0.
    """
    if line not in groups or other not in groups:
        return None
    levels = {name: accuracy(groups[name]).mean for name in (line, other)}
    first, second = (level if math.isfinite(level) else 0.0 for level in levels.values())
    return Claim(text, low < first - second < high, "; ".join(_level(name, level) for name, level in levels.items()))


def guess(text: str, groups: Mapping[str, Group], line: str) -> Claim | None:
    """The claim that the final accuracy of `line` is at most 12 %, for ten classes; None without runs of it.

    A setting with a diverged run counts as one that guesses.
    """
    if line not in groups:
        return None
    level = accuracy(groups[line]).mean
    return Claim(text, not level > 0.12 or not math.isfinite(level), _level(line, level))


def _level(name: str, level: float) -> str:
    return f"{name}: {100 * level:.1f} %" if math.isfinite(level) else f"{name}: diverged"
