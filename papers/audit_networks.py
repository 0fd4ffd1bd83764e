"""An audit of contradictory public results on networks: SCAFFOLD with departures, FedNova with unequal data sizes.

The departures and the runs on quadratics are in `audit`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from raylfl.report.derived import Stat, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from papers.audit import (
    ALL,
    AVERAGE,
    AVERAGE_MOMENTUM,
    CONTROLS,
    DEPARTED,
    LINES,
    LONG,
    MODEL,
    MOMENTUM,
    PAIR,
    PLAIN,
    RECEIVED,
    SEEDS,
    WIDE,
    scaffold_lines,
)
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.choice import plain
from papers.coverage import by_cell, gaps
from papers.ledger import Row
from papers.run_cache import RunCache
from papers.setting import Setting, setting
from papers.texts import ACCURACY, accuracy_text


class Network(PaperResult):
    """An audit with LeNet-5 on MNIST (at scale `smoke`: digits, 50 clients), under NIID-Bench's partitions.

    A row of the table is one method or variant. Rows and seeds can be run and published one by one; a claim is judged
    if all its rows have runs. A subclass without scales always has the sizes of the scale `smoke`, and all seeds.

    data: names of configs merged on top, for other data at scale `paper`. names: the names of the table's rows.
    """

    data: ClassVar[Sequence[str]] = ()
    names: ClassVar[Sequence[str]]
    scales: ClassVar[tuple[str, ...]] = SCALES
    choices = ("method", "seed")
    from_rows = True

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
        from papers import draw

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
            *_steps(groups),
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
        ]
        return self.findings(groups, "10 % of the clients a round", "Dirichlet(0.5)", claims, LINES, [DEPARTED])


@EXPERIMENTS.register("audit/scaffold-digits", paper="SCAFFOLD in public code, LeNet-5 on digits")
class ScaffoldDigits(ScaffoldNetwork):
    """Test accuracy of SCAFFOLD on the bundled digits with 5 of 50 clients: as published, and with three departures.

    The same as `ScaffoldNetwork` on smaller data.
    """

    scales = ()


class ScaffoldAllClients(Network):
    """The base of audits of SCAFFOLD in which all of ten clients take part in each round, with pixels in 0..1.

    The start of the control variates and their divisor then make no difference: momentum is the only departure left.
    As in the public tables, a run has 50 rounds, and FedAvg weights clients by data size. The weight decay of 1e-5 of
    the public tables is left out.

    partition: the options of the data partition; words: the same partition in words.
    """

    clients, rounds = 10, 50
    names = (PLAIN, MOMENTUM, LONG, AVERAGE, AVERAGE_MOMENTUM)
    partition: ClassVar[Mapping[str, Any]]
    words: ClassVar[str]

    def run(self, cache: RunCache) -> Findings:
        system = {"num_clients": self.clients, "participation.size": self.clients, "partition": self.partition}
        length = {"rounds": self.rounds, "eval.every": 1, "checkpoint.every": cache.pick(0, 1)}
        pixels = cache.pick({}, {"data.init_args.mean": [0.0], "data.init_args.std": [1.0]})
        base = self.base(cache, {}).with_("", {**system, **length, **pixels})
        lines = [line for line in scaffold_lines(base, 0.01) if line.label in self.names]
        sizes = {"algorithm.aggregate": "weighted"}
        lines = [line.with_(line.label, sizes) if line.label in CONTROLS else line for line in lines]
        groups = self.groups(cache, lines)
        return self.findings(groups, "all of ten clients a round", self.words, _steps(groups), LINES)


@EXPERIMENTS.register("audit/scaffold-classes", paper="SCAFFOLD in public code, two classes per client")
class ScaffoldClasses(ScaffoldAllClients):
    """Test accuracy of SCAFFOLD on FashionMNIST, ten clients with two classes each: as published, and with momentum.

    A replication of NIID-Bench has 10.0 % for SCAFFOLD in this setting, and 81.0 % for FedAvg.
    """

    data = ("data/fashion_mnist",)
    partition: ClassVar = {"name": "classes", "classes": 2}
    words = "two classes per client"


@EXPERIMENTS.register("audit/scaffold-dirichlet", paper="SCAFFOLD in public code, Dirichlet(0.5)")
class ScaffoldDirichlet(ScaffoldAllClients):
    """Test accuracy of SCAFFOLD on MNIST, ten clients with Dirichlet(0.5) label skew: as published, and with momentum.

    Public tables have 99.0, 99.0 and 61.99 % for SCAFFOLD in this setting, and 98.9 % for FedAvg.
    """

    partition: ClassVar = {"name": "dirichlet", "alpha": 0.5, "min_size": 10, "balance": "cap"}
    words = "Dirichlet(0.5)"


@EXPERIMENTS.register("audit/fednova-network", paper="FedNova under quantity skew, on LeNet-5")
class FedNovaNetwork(Network):
    """Test accuracy of FedNova, ten clients of unequal sizes p_i, with and without the factor N sum p_i^2 in its step.

    N: number of clients; p_i: client i's share of the samples. If clients solve their local problems within a round,
    FedNova's step is the mean update times this factor. LeNet-5 on MNIST.

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

    The setting in which a public table has 10.0 % for FedNova: momentum 0.9 and weight decay in the local steps. A run
    has ten rounds instead of the fifty of this table, because a round takes a minute.
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


def accuracy(group: Group) -> Stat:
    """The test accuracy over the last tenth of the rounds, as mean and std over rounds and seeds."""
    return last_k(group, ACCURACY, max(1, group.runs[0].config["rounds"] // 10))


def _steps(groups: Mapping[str, Group]) -> list[Claim | None]:
    """The claims about SCAFFOLD as published, with momentum and with a longer step, beside FedAvg."""
    return [
        _gap("as published, SCAFFOLD is less than 2 points below FedAvg", groups, PLAIN, AVERAGE, -0.02, 1),
        _gap("a momentum of 0.9 in the local steps costs more than 10 points", groups, MOMENTUM, PLAIN, -1, -0.1),
        _gap("ten times the learning rate costs more than 10 points", groups, LONG, PLAIN, -1, -0.1),
        _gap(
            "FedAvg with a momentum of 0.9 is less than 2 points below FedAvg without",
            groups,
            AVERAGE_MOMENTUM,
            AVERAGE,
            -0.02,
            1,
        ),
    ]


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
