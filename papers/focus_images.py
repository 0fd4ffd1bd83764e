"""FOCUS [1] (Ying, Li & Yang, NeurIPS 2025), figure 9: SG-FOCUS on CIFAR-10, at one and at the best learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from papers.base import EXPERIMENTS, Claim, Findings
from papers.choice import plain
from papers.focus import METHODS
from papers.focus_logs import DIVISOR, DROPOUT, SEQUENCE, SHARED, logs
from papers.grid import Axis, Grid, Point, nest
from papers.ledger import Row
from papers.run_cache import RunCache
from papers.setting import CellConfig
from papers.texts import ACCURACY, accuracy_text, cost_or_dash, mean_cost, stat_of
from raylfl.report.derived import Stat, group_to_target, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable

LINES: dict[str, dict[str, Any]] = {
    name: {"algorithm.name": METHODS[name]} for name in ("FOCUS", "FedAvg", "FedAU", "MIFA", "SCAFFOLD")
} | {DIVISOR: {"algorithm.name": "scaffold", "algorithm.divisor": 10}}
LOOKS = {name: METHODS.get(name, "fedprox") for name in LINES} | {
    SEQUENCE: "sfl",
    "FedAU": "fedacs",  # FOCUS is blue, too
    "FOCUS, dropout": "fedaware",
    "SCAFFOLD, divisor 10, dropout": "fedvarp",
}
# the rates of the public code: a client takes part with probability 0.2, whether or not it did in the round before
PANELS: dict[str, dict[str, Any]] = {
    "Bernoulli": {},
    "Markov": {"participation": {"name": "markov", "p_on": 0.2, "p_off": 0.8}},
}
ROUNDS = 10_000
RATES = (0.002, 0.006, 0.02, 0.06)  # the published learning rate, and larger ones
Lines = Mapping[str, Group]


class Images(Grid):
    """The base of the experiments with SG-FOCUS and its rivals on CIFAR-10; `--only` selects single runs.

    Unless the options say otherwise, a run has 10,000 rounds, or at scale `smoke` 300 with a larger learning rate.
    """

    base, choices = ("reproduce/focus_fig9",), ("participation", "method")
    axes: ClassVar[dict[str, Axis]] = {"participation": PANELS, "method": LINES}
    smoke: ClassVar = {"num_clients": 32, "rounds": 300, "local.batch_size": 16, "local.lr": 0.02}


@EXPERIMENTS.register("focus/fig9", paper="FOCUS [1] fig. 9")
class Fig9(Images):
    """SG-FOCUS and its rivals on CIFAR-10 under Bernoulli and Markov participation, at one learning rate."""

    time = "about 60 hours on two cores"
    curves = ("test/loss",)
    # mean and std over the last 500 rounds of the authors' public logs; they have neither MIFA nor this FedAvg
    published: ClassVar = {
        "Bernoulli": {"FOCUS": "78.6±0.8", "FedAU": "74.1±1.1", DIVISOR: "50.2±1.3"},
        "Markov": {"FOCUS": "78.8±1.1", "FedAvg": "75.0±1.3", "FedAU": "75.4±1.4", DIVISOR: "51.5±1.4"},
    }

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        groups = nest(self.groups(cache), "participation", "method")
        last = cache.pick(30, 500)
        plots = [
            draw.Plot(f"{panel} participation", lines, metric, window=cache.pick(5, 10))
            for panel, lines in groups.items()
            for metric in (ACCURACY, "test/loss")
        ]
        ends = {
            panel: {name: last_k(g, ACCURACY, last) for name, g in lines.items()} for panel, lines in groups.items()
        }
        claims = [_most_accurate(f"{panel}: FOCUS is the most accurate", values) for panel, values in ends.items()]
        claims += [fastest(panel, lines, last) for panel, lines in groups.items()]
        figures = {"fig9": draw.curves(plots, draw.styles(LOOKS))}
        return Findings([self._table(ends, last)], [c for c in claims if c is not None], figures, NOTES)

    def _table(self, ends: Mapping[str, Mapping[str, Stat]], last: int) -> ReportTable:
        """The table of final accuracies beside the accuracies in the authors' logs.

        ends: participation -> method -> our final accuracy.
        """
        none = Stat.over([])
        logs = {panel: {name: stat_of(text) for name, text in texts.items()} for panel, texts in self.published.items()}
        rows = [
            {"method": name}
            | {panel: texts.get(name, none) for panel, texts in ends.items()}
            | {f"{panel} logs": logs[panel].get(name, none) for panel in ends}
            for name in LINES
            if any(name in texts for texts in ends.values())
        ]
        columns = [Column("method", "method")]
        for panel in ends:
            columns += [
                Column(panel, f"{panel}: ours", accuracy_text, "max", True),
                Column(f"{panel} logs", "authors' logs", accuracy_text, "max", True),
            ]
        return ReportTable("fig9", f"Test accuracy in % over the last {last} rounds.", columns, rows)


@EXPERIMENTS.register("focus/fig9-start", paper="FOCUS [1] fig. 9")
class Fig9Start(Images):
    """The first 1,000 of figure 9's 10,000 rounds, beside the authors' logs of the same rounds.

    The log of FedAvg is also compared with a sequential FedAvg, in which the sampled clients train one after the other.
    Two Bernoulli logs are also compared with runs whose network has dropout; the paper does not mention dropout.
    """

    rounds: ClassVar = 1000
    margin: ClassVar = 0.05  # of the accuracy; in the logs most methods differ by more
    options: ClassVar = {"rounds": rounds, "eval.every": 25}
    axes: ClassVar = {
        "participation": PANELS,
        "method": LINES
        | {SEQUENCE: {"algorithm.name": "sfl"}}
        | {line: LINES[name] | {"model.init_args.dropout": 0.25} for line, name in DROPOUT.items()},
    }
    # the methods with a log, and variants of them
    compared: ClassVar[Mapping[str, Sequence[str]]] = {
        "Bernoulli": [*Fig9.published["Bernoulli"], *DROPOUT],
        "Markov": [*Fig9.published["Markov"], SEQUENCE],
    }

    def points(self, scale: str) -> list[Point]:
        return [Point(participation=panel, method=name) for panel, methods in self.compared.items() for name in methods]

    def setting(self, point: Point, scale: str) -> CellConfig:
        made = super().setting(point, scale)
        return made if scale == "paper" else made.with_(made.label, {"rounds": 100})

    def run(self, cache: RunCache) -> Findings:
        from papers.focus_curves import overlay

        rounds = cache.pick(100, self.rounds)
        last = rounds // 5
        authors = logs() if cache.scale == "paper" else {}
        groups = nest(self.groups(cache), "participation", "method")
        rows, claims = [], list[Claim]()
        for panel, lines in groups.items():
            measured = {name: last_k(group, ACCURACY, last) for name, group in lines.items()}
            logs_of = {name: authors.get((panel, name), {}) for name in lines}
            ends = {
                name: Stat.over([v for r, v in log.items() if rounds - last < r <= rounds])
                for name, log in logs_of.items()
            }
            rows += [{"panel": panel, "method": name, "ours": measured[name], "logs": ends[name]} for name in lines]
            claims += [self._close(panel, name, measured[name], ends[name]) for name in lines if authors]
        columns = [
            Column("panel", "participation"),
            Column("method", "method"),
            Column("ours", "ours", accuracy_text),
            Column("logs", "authors' logs", accuracy_text),
        ]
        caption = f"Test accuracy in %, mean ± std over the measurements of rounds {rounds - last + 1} to {rounds}."
        looks = {point.method: LOOKS[point.method] for point in self.points("paper")}
        figures = {"fig9_start": overlay(groups, authors, looks)}
        return Findings([ReportTable("fig9_start", caption, columns, rows)], claims, figures, NOTES)

    def missing(self, rows: Sequence[Row]) -> list[str]:
        ends = "; ".join(
            f"{panel}: " + ", ".join(f"{name} {text.partition('±')[0]}" for name, text in texts.items())
            for panel, texts in Fig9.published.items()
        )
        return [
            f"rounds 1 to {self.rounds:,} of the figure's {ROUNDS:,} only; the final accuracies of the logs are not "
            f"compared ({ends})",
            *super().missing(rows),
        ]

    def _close(self, panel: str, name: str, stat: Stat, log: Stat) -> Claim:
        """The claim that the accuracy of a method, `stat`, differs from its log by at most the margin."""
        whose = f"{SHARED[name]}'s" if name in SHARED else "its"
        text = f"{panel}: {name} is within {100 * self.margin:g} points of {whose} log"
        evidence = f"{accuracy_text(stat)} %, log: {accuracy_text(log)} %"
        return Claim(text, abs(_level(stat) - log.mean) <= self.margin, evidence)


@EXPERIMENTS.register("focus/fig9-rates", paper="FOCUS [1] fig. 9")
class Fig9Rates(Images):
    """SG-FOCUS and its rivals on CIFAR-10 under Bernoulli participation, each at its best learning rate.

    With one learning rate for all, as in the figure, a round's step of FOCUS is ten times as long as FedAvg's.
    """

    choices, curves = ("method", "lr"), ("test/loss",)
    options: ClassVar = {"rounds": ROUNDS}
    axes: ClassVar = {"method": LINES, "lr": {lr: {"local.lr": lr} for lr in RATES}}

    def points(self, scale: str) -> list[Point]:
        return [p for p in super().points(scale) if p.lr in (RATES if scale == "paper" else RATES[2:])]

    def label(self, point: Point) -> str:
        return f"{point.method}, lr {point.lr:g}"

    def cell(self, point: Point) -> dict[str, Any]:
        return {"method": plain(point.method), "lr": point.lr}

    def setting(self, point: Point, scale: str) -> CellConfig:
        made = super().setting(point, scale)
        return made if scale == "paper" else made.with_(made.label, {"rounds": 100})

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        groups = {(point.method, point.lr): group for point, group in self.groups(cache).items()}
        cells = list(groups)
        last = cache.pick(30, 500)
        ends = {cell: last_k(group, ACCURACY, last) for cell, group in groups.items()}
        rates = {name: [lr for method, lr in ends if method == name] for name in LINES}
        best = {name: max(tried, key=lambda lr: _level(ends[name, lr])) for name, tried in rates.items() if tried}
        rows = [
            {"method": name, "best": best[name]} | {f"{lr:g}": ends.get((name, lr), Stat.over([])) for _, lr in cells}
            for name in best
        ]
        columns = [Column("method", "method"), Column("best", "best lr", lambda lr: f"{lr:g}", None, True)]
        columns += [
            Column(f"{lr:g}", f"lr {lr:g}", accuracy_text, "max", True) for lr in sorted({lr for _, lr in cells})
        ]
        lines = {name: groups[name, lr] for name, lr in best.items()}
        plots = [draw.Plot("each method at its best rate", lines, m, window=10) for m in (ACCURACY, "test/loss")]
        complete = {name: lr for name, lr in best.items() if len(rates[name]) == len(cache.pick(RATES[2:], RATES))}
        claim = _most_accurate(
            "FOCUS is the most accurate, each method at its best learning rate",
            {name: ends[name, lr] for name, lr in complete.items()},
        )
        table = ReportTable("fig9_rates", f"Test accuracy in % over the last {last} rounds.", columns, rows)
        return Findings(
            [table], [claim] if claim else [], {"fig9_rates": draw.curves(plots, draw.styles(LOOKS))}, NOTES[1:]
        )


def fastest(panel: str, lines: Lines, last: int) -> Claim | None:
    """The claim that FOCUS is the first to reach 90 % of the best final accuracy of the other methods.

    panel: the kind of participation; lines: method -> runs; last: the number of last rounds whose mean is the final
    accuracy. None without runs of FOCUS and of another method.
    """
    if "FOCUS" not in lines or len(lines) < 2:
        return None
    rivals = [last_k(group, ACCURACY, last).mean for name, group in lines.items() if name != "FOCUS"]
    target = 0.9 * max(rivals)
    reached = {name: mean_cost(group_to_target(group, ACCURACY, target)) for name, group in lines.items()}
    evidence = ", ".join(f"{name} {cost_or_dash(value)}" for name, value in sorted(reached.items(), key=lambda i: i[1]))
    holds = reached["FOCUS"] < min(value for name, value in reached.items() if name != "FOCUS")
    return Claim(f"{panel}: FOCUS is the fastest, in rounds to {100 * target:.1f} %", holds, evidence)


def _most_accurate(text: str, ends: Mapping[str, Stat]) -> Claim | None:
    """The claim that FOCUS has the highest of these accuracies; None without FOCUS and another method."""
    if "FOCUS" not in ends or len(ends) < 2:
        return None
    evidence = ", ".join(f"{name} {100 * stat.mean:.1f}" for name, stat in ends.items())
    return Claim(text, max(ends, key=lambda name: _level(ends[name])) == "FOCUS", evidence)


def _level(stat: Stat) -> float:
    return stat.mean if math.isfinite(stat.mean) else 0.0


NOTES: Sequence[str] = [
    "the paper's text has no Markov runs; rates and logs are those of its public code: off to on 0.2, on to off 0.8, "
    "a chain without memory, as either state is followed by `on` with probability 0.2",
    "all methods have one learning rate, as in the logs, but FOCUS adds the gradients of 32 clients where FedAvg "
    "averages them: its step is 32 lr a round, that of FedAvg 3 lr (of 3 local steps), 10.7 times less; "
    "focus/fig9-rates compares the methods at their best rates",
    "the public code divides the sum of SCAFFOLD's updates by 10, for any number of received clients: divisor 10",
    "the public code moves random samples until all clients have equally many (partition.balance=move), which makes "
    "them less different than one class per client",
]
