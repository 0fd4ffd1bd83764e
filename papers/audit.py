"""An audit of contradictory public results: SCAFFOLD in public code, and FedNova with clients of unequal data sizes.

Each departure of public code from SCAFFOLD is an option here, and is run beside the published method.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim
from papers.grid import Axis
from papers.lines import Lines, Values
from papers.numbers import ACCURACY, accuracy_text, listing
from raylfl.report.derived import Stat, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column
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
}
DEPARTURES[PAIR] = DEPARTURES[MODEL] | DEPARTURES[RECEIVED]
DEPARTURES[ALL] = DEPARTURES[MOMENTUM] | DEPARTURES[PAIR]
DEPARTED = (
    "the three departures of public code: a momentum of 0.9 in the local steps, applied to the raw gradient; control "
    "variates that start as the initial model instead of 0 ('variates from the model'); changes of the server's "
    "variate divided by the number of received clients instead of all clients ('variate over the received')"
)
LINES = {PLAIN: "scaffold", MOMENTUM: "fedavgm", LONG: "fedacs", MODEL: "focus", RECEIVED: "fedaware"}
LINES |= {PAIR: "fedau", ALL: "fedvarp", AVERAGE: "fedavg", AVERAGE_MOMENTUM: "mifa", PROX: "fedprox"}
EARLY, LATE, START = 100, 300, "at the start"  # rounds
BOTH = (
    "both variate departures together (variates that start as the model, server variate divided by the received "
    "clients)"
)
DISTANCES = (  # claims
    "as published, SCAFFOLD converges with a tenth of the clients in each round",
    "with a momentum of 0.9 in the local steps SCAFFOLD does not converge",
    f"after {EARLY} rounds SCAFFOLD is as far from the optimum with this momentum as with ten times the learning rate "
    "(within a factor of 2)",
    "at the end it is more than 5 times nearer with ten times the learning rate than with momentum, so the longer step "
    "is not the only cause",
    "a server variate divided by the received clients leaves SCAFFOLD more than 10 times as far from the optimum at "
    "the end",
    f"{BOTH} lead away from the optimum",
    "variates that start as the model, alone, change the distance at the end by less than a factor of 10",
)
WIDE = (6.4, 3.2)  # inches: a panel below the long names of the lines
SEEDS, SHORT = (0, 1, 2), partial(number, digits=2)


def methods(rate: float, aggregate: str | None = None) -> Axis:
    """SCAFFOLD as published, with departures, at ten times the rate (momentum's step length); FedAvg; FedProx."""
    average = {"algorithm.name": "fedavg"} | ({"algorithm.aggregate": aggregate} if aggregate else {})
    named = DEPARTURES | {LONG: {"local.lr": 10.0 * rate}, AVERAGE: average}
    named |= {AVERAGE_MOMENTUM: average | {"local.momentum": 0.9}, PROX: {"algorithm.name": "fedprox"}}
    return {name: {"algorithm.name": "scaffold", "local.lr": rate, **options} for name, options in named.items()}


@EXPERIMENTS.register("audit/scaffold", paper="SCAFFOLD in public code, on quadratics")
class ScaffoldAudit(Lines):
    """Distance to the optimum of SCAFFOLD with 2 of 20 clients a round: as published, and with three departures."""

    scales, seeds, base, cells = (), SEEDS, ("reproduce/audit_scaffold",), "label"
    axes: ClassVar = {"method": methods(0.04)}
    measures: ClassVar = {
        f"distance after {r}": lambda run, r=r: float(run.column(DISTANCE)[:r][-1]) for r in (EARLY, LATE)
    } | {"distance at the start": lambda run: start_distance(run.config)}
    metrics, stem, looks, size, notes = (DISTANCE,), "distance", LINES, WIDE, (DEPARTED,)
    heading = "2 of 20 clients a round"
    columns = tuple(Column(k, f"after {r} rounds", SHORT, "min", True) for k, r in (("early", EARLY), ("late", LATE)))

    def values(self, panel: str, line: str, group: Group) -> dict[str, float]:
        values = np.array([[self.measure(run, name) for run in group.runs] for name in self.measures], np.float64)
        return dict(zip(("early", "late", "start"), np.exp(np.log(values).mean(axis=1)).tolist(), strict=True))

    def plot_of(self, lines: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        return {"start": lines[PLAIN]["start"]}

    def caption_of(self, values: Values) -> str:
        start = SHORT(values[""][PLAIN]["start"])
        return f"Relative distance to the optimum, |x - x*|/|x*|: geometric mean over seeds; at the start {start}."

    def claims(self, values: Values) -> list[Claim]:
        early, late = ({name: of[key] for name, of in values[""].items()} for key in ("early", "late"))
        late[START] = values[""][PLAIN]["start"]
        verdicts: list[tuple[bool, dict[str, float], list[str]]] = [
            (late[PLAIN] < 1e-4, late, [PLAIN]),
            (late[MOMENTUM] > 0.05, late, [MOMENTUM, PLAIN]),
            (0.5 < early[LONG] / early[MOMENTUM] < 2.0, early, [MOMENTUM, LONG]),
            (late[LONG] < 0.2 * late[MOMENTUM], late, [LONG, MOMENTUM]),
            (late[RECEIVED] > 10 * late[PLAIN], late, [RECEIVED, PLAIN]),
            (late[PAIR] > late[START], late, [PAIR, START]),
            (0.1 < late[MODEL] / late[PLAIN] < 10.0, late, [MODEL, PLAIN]),
        ]
        return [
            Claim(text, holds, listing({name: distances[name] for name in names}, SHORT, ": ", "; "))
            for text, (holds, distances, names) in zip(DISTANCES, verdicts, strict=True)
        ]


def start_distance(config: Mapping[str, Any]) -> float:
    from raylfl.data.synthetic import DenseQuadratics

    optimum = DenseQuadratics(**config["data"]["init_args"]).optimum().numpy()
    x0 = np.full_like(optimum, config["model"]["init_args"]["x0"])
    return float(np.linalg.norm(x0 - optimum) / np.linalg.norm(optimum))


class NetworkAudit(Lines):
    """An audit with LeNet-5 on MNIST (at scale `smoke`: digits, 50 clients), under NIID-Bench's partitions.

    clients: the clients of a round in words; the heading has their data. gaps: text of a claim -> (a, b, low, high):
    the final accuracies of rows a and b have low < a - b <= high; without b, a itself has. It is judged if its rows
    have runs. The accuracy of a setting with a diverged run counts as 0.
    """

    base: ClassVar[Sequence[str]] = ("reproduce/audit_network",)
    seeds, choices = SEEDS, ("method", "seed")
    # 40 epochs on the small set of digits have about as many local steps as ten epochs on MNIST
    local: ClassVar = {"local.batch_size": 16, "local.epochs": 40}
    smoke: ClassVar = {"partition.min_size": 2, "participation.size": 5, "data.init_args.upscale": 28} | local
    stem, size, looks, plot = "accuracy", WIDE, LINES, {"limits": (0.0, 100.0)}
    columns = (Column("accuracy", "accuracy", accuracy_text, "max", True),)
    caption = (
        "Test accuracy in %, {0.clients}, {0.heading}: mean ± std over seeds and the last tenth of the rounds. "
        "Diverged: at least one seed diverged."
    )
    clients: ClassVar[str] = "all of ten clients a round"
    gaps: ClassVar[Mapping[str, tuple[str, str, float, float]]]

    def values(self, panel: str, line: str, group: Group) -> dict[str, Stat]:
        return {"accuracy": last_k(group, ACCURACY, max(1, group.runs[0].config["rounds"] // 10))}

    def claims(self, values: Values) -> list[Claim]:
        means = {name: of["accuracy"].mean for lines in values.values() for name, of in lines.items()}
        level = {name: mean if math.isfinite(mean) else 0.0 for name, mean in means.items()} | {"": 0.0}
        shown = {name: f"{100 * mean:.1f} %" if math.isfinite(mean) else "diverged" for name, mean in means.items()}
        claims = []
        for text, (line, other, low, high) in self.gaps.items():
            if {line, other} <= level.keys():
                evidence = listing({name: shown[name] for name in (line, other) if name}, str, ": ", "; ")
                claims.append(Claim(text, low < level[line] - level[other] <= high, evidence))
        return claims


COMPARED = (PLAIN, MOMENTUM, LONG, AVERAGE, AVERAGE_MOMENTUM)
GUESS = (-1.0, 0.12)  # of ten classes
STEPS = {
    "as published, SCAFFOLD is less than 2 points below FedAvg": (PLAIN, AVERAGE, -0.02, 1.0),
    "a momentum of 0.9 in the local steps costs more than 10 points": (MOMENTUM, PLAIN, -1.0, -0.1),
    "ten times the learning rate costs more than 10 points": (LONG, PLAIN, -1.0, -0.1),
    "FedAvg with a momentum of 0.9 is less than 2 points below FedAvg without": (AVERAGE_MOMENTUM, AVERAGE, -0.02, 1.0),
}


@EXPERIMENTS.register("audit/scaffold-network", paper="SCAFFOLD in public code, on LeNet-5")
class ScaffoldNetwork(NetworkAudit):
    """Test accuracy of SCAFFOLD with a tenth of the clients: as published, and with three departures."""

    axes: ClassVar = {"method": methods(0.01)}
    clients, heading, notes = "10 % of the clients a round", "Dirichlet(0.5)", (DEPARTED,)
    gaps: ClassVar = STEPS | {
        "variates that start as the model cost less than 2 points": (MODEL, PLAIN, -0.02, 1.0),
        "a server variate divided by the received clients costs more than 10 points": (RECEIVED, PLAIN, -1.0, -0.1),
        f"{BOTH} are no better than a guess at the end": (PAIR, "", *GUESS),
        "all three departures together are no better than a guess at the end": (ALL, "", *GUESS),
    }


@EXPERIMENTS.register("audit/scaffold-digits", paper="SCAFFOLD in public code, LeNet-5 on digits")
class ScaffoldDigits(ScaffoldNetwork):
    """Test accuracy of SCAFFOLD on the bundled digits with 5 of 50 clients: as published, and with three departures."""

    scales, base = (), (*NetworkAudit.base, "reproduce/smoke")


class ScaffoldAllClients(NetworkAudit):
    """The base of audits of SCAFFOLD in which all of ten clients take part in each round, with pixels in 0..1.

    The start of the control variates and their divisor then make no difference: momentum is the only departure left.
    As in the public tables, a run has 50 rounds, and FedAvg weights clients by data size; the weight decay is left out.
    """

    axes: ClassVar = {"method": {k: options for k, options in methods(0.01, "weighted").items() if k in COMPARED}}
    options: ClassVar[dict[str, Any]] = {"num_clients": 10, "participation.size": 10, "rounds": 50, "eval.every": 1}
    smoke: ClassVar = NetworkAudit.smoke | {"checkpoint.every": 0}
    paper: ClassVar[dict[str, Any]] = {"checkpoint.every": 1, "data.init_args.mean": [0.0], "data.init_args.std": [1.0]}
    gaps: ClassVar = STEPS


@EXPERIMENTS.register("audit/scaffold-classes", paper="SCAFFOLD in public code, two classes per client")
class ScaffoldClasses(ScaffoldAllClients):
    """Test accuracy of SCAFFOLD on FashionMNIST, ten clients with two classes each: as published, and with momentum."""

    # a replication of NIID-Bench has 10.0 % for SCAFFOLD in this setting, and 81.0 % for FedAvg
    heading = "two classes per client"
    paper: ClassVar = ScaffoldAllClients.paper | {"base": ["data/fashion_mnist"]}
    options: ClassVar = ScaffoldAllClients.options | {"partition": {"name": "classes", "classes": 2}}


@EXPERIMENTS.register("audit/scaffold-dirichlet", paper="SCAFFOLD in public code, Dirichlet(0.5)")
class ScaffoldDirichlet(ScaffoldAllClients):
    """Test accuracy of SCAFFOLD on MNIST, ten clients with Dirichlet(0.5) label skew: as published, and with momentum.

    Public tables have 99.0, 99.0 and 61.99 % for SCAFFOLD in this setting, and 98.9 % for FedAvg.
    """

    heading = "Dirichlet(0.5)"
    skew: ClassVar = {"name": "dirichlet", "alpha": 0.5, "min_size": 10, "balance": "cap"}
    options: ClassVar = ScaffoldAllClients.options | {"partition": skew}


CLIENTS, ALPHA = 10, 0.5
FACTOR = CLIENTS * (ALPHA + 1) / (CLIENTS * ALPHA + 1)  # E[N sum p_i^2] of Dirichlet(alpha)
STEP = f"with its step divided by the mean of N sum p_i^2 (gamma = 1/{FACTOR:g})"
NOVA, DIVIDED = "FedNova", f"FedNova, gamma = 1/{FACTOR:g}"


@EXPERIMENTS.register("audit/fednova-network", paper="FedNova under quantity skew, on LeNet-5")
class FedNovaNetwork(NetworkAudit):
    """Test accuracy of FedNova, ten clients of unequal sizes p_i, with and without the factor N sum p_i^2 in its step.

    p_i: client i's share of the samples. If clients solve their local problems, FedNova's step is that much longer.
    """

    heading = "sizes from Dirichlet(0.5)"
    nova: ClassVar = {"algorithm.name": "fednova"}
    divided: ClassVar = nova | {"algorithm.gamma": 1.0 / FACTOR}
    axes: ClassVar = {"method": {NOVA: nova, DIVIDED: divided, AVERAGE: {"algorithm.name": "fedavg"}}}
    options: ClassVar[dict[str, Any]] = {"rounds": 50, "num_clients": CLIENTS, "participation.size": CLIENTS}
    options |= {"partition": {"name": "quantity", "alpha": ALPHA}}
    gaps: ClassVar = {
        "FedNova is more than 10 points below FedAvg": (NOVA, AVERAGE, -1.0, -0.1),
        f"{STEP}, FedNova is within 2 points of FedAvg": (DIVIDED, AVERAGE, -0.02, 0.02),
    }
    looks: ClassVar = {NOVA: "fednova", DIVIDED: "focus", AVERAGE: "fedavg"}


@EXPERIMENTS.register("audit/fednova-cifar", paper="FedNova under quantity skew, LeNet-5 on CIFAR-10")
class FedNovaCifar(FedNovaNetwork):
    """Test accuracy of FedNova on CIFAR-10, ten clients of sizes p_i, with and without the factor N sum p_i^2.

    The setting of a public table with 10.0 % for FedNova; a run has ten rounds, not fifty: a round takes a minute.
    """

    paper: ClassVar = {"base": ["data/cifar10"]}
    options: ClassVar = FedNovaNetwork.options | {"rounds": 10, "eval.every": 1, "checkpoint.every": 1}
    options |= {"local.momentum": 0.9, "local.weight_decay": 1e-5}


@EXPERIMENTS.register("audit/fednova-digits", paper="FedNova under quantity skew, LeNet-5 on digits")
class FedNovaDigits(FedNovaNetwork):
    """Test accuracy of FedNova on digits, ten clients of unequal sizes p_i, with and without the factor N sum p_i^2."""

    scales, base = (), (*NetworkAudit.base, "reproduce/smoke")
