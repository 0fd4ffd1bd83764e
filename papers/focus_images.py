"""FOCUS [1] (Ying, Li & Yang, NeurIPS 2025), figure 9: SG-FOCUS on CIFAR-10, at one and at the best learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from papers.base import EXPERIMENTS, Claim, Findings
from papers.choice import plain
from papers.focus import METHODS
from papers.grid import Axis, Grid, Point, nest
from papers.ledger import Row
from papers.lines import Lines, Values
from papers.run_cache import RunCache
from papers.texts import (
    ACCURACY,
    accuracy_text,
    cost_or_dash,
    general,
    mean_cost,
    measurements,
    path_of,
    stat_of,
    table_of,
)
from raylfl.report.derived import Stat, group_to_target, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable

DIVISOR = "SCAFFOLD, divisor 10"  # SCAFFOLD in the form of the public code and of its logs
SEQUENCE = "FedAvg in sequence"  # each client starts from the model of the client before, as in SFL
DROPOUT = {"FOCUS, dropout": "FOCUS", f"{DIVISOR}, dropout": DIVISOR}  # with another network -> without
SHARED = {SEQUENCE: "FedAvg"} | DROPOUT  # variant -> the method with whose log it is compared
LOGS = Path("published") / "focus_fig9.csv.gz"
LINES: dict[str, dict[str, Any]] = {
    name: {"algorithm.name": METHODS[name]} for name in ("FOCUS", "FedAvg", "FedAU", "MIFA", "SCAFFOLD")
} | {DIVISOR: {"algorithm.name": "scaffold", "algorithm.divisor": 10}}
STARTED = (
    LINES
    | {SEQUENCE: {"algorithm.name": "sfl"}}
    | {line: LINES[name] | {"model.init_args.dropout": 0.25} for line, name in DROPOUT.items()}
)
LOOKS = {name: METHODS.get(name, "fedprox") for name in LINES} | {
    SEQUENCE: "sfl",
    "FedAU": "fedacs",  # FOCUS is blue, too
    "FOCUS, dropout": "fedaware",
    f"{DIVISOR}, dropout": "fedvarp",
}
# the rates of the public code: a client takes part with probability 0.2, whether or not it did in the round before
PANELS: dict[str, dict[str, Any]] = {
    "Bernoulli": {},
    "Markov": {"participation": {"name": "markov", "p_on": 0.2, "p_off": 0.8}},
}
ROUNDS = 10_000
RATES = (0.002, 0.006, 0.02, 0.06)  # the published learning rate, and larger ones
# participation -> method -> mean and std over the last 500 rounds of the authors' public logs
PUBLISHED = {
    row.pop("participation"): {name: text for name, text in row.items() if text} for row in table_of("focus_fig9")
}
NONE = Stat.over([])
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
Log = dict[int, float]  # number of finished rounds -> test accuracy as a fraction


def logs() -> dict[tuple[str, str], Log]:
    """(participation, method) -> the authors' log; a variant in SHARED has the log of its method.

    Raises DataMissing if the file is missing.
    """
    logs: dict[tuple[str, str], Log] = {}
    for line in measurements(path_of(LOGS)):
        method = DIVISOR if line["method"] == "SCAFFOLD" else line["method"]
        log = logs.setdefault((line["participation"].capitalize(), method), {})
        log[int(line["round"]) + 1] = float(line["test_accuracy_percent"]) / 100
    shared = {(panel, line): log for line, name in SHARED.items() for (panel, key), log in logs.items() if key == name}
    return logs | shared


class Images(Grid):
    """The base of the experiments with SG-FOCUS and its rivals on CIFAR-10; `--only` selects single runs.

    Unless the options say otherwise, a run has 10,000 rounds, or at scale `smoke` 300 with a larger learning rate.
    """

    base, choices = ("reproduce/focus_fig9",), ("participation", "method")
    axes: ClassVar[dict[str, Axis]] = {"participation": PANELS, "method": LINES}
    smoke: ClassVar = {"num_clients": 32, "rounds": 300, "local.batch_size": 16, "local.lr": 0.02}


@EXPERIMENTS.register("focus/fig9", paper="FOCUS [1] fig. 9")
class Fig9(Lines, Images):
    """SG-FOCUS and its rivals on CIFAR-10 under Bernoulli and Markov participation, at one learning rate."""

    time = "about 60 hours on two cores"
    curves = ("test/loss",)
    panel, heading, metrics, stem = "participation", "{} participation", (ACCURACY, "test/loss"), "fig9"
    looks, notes = LOOKS, NOTES
    columns = (
        Column("ours", "ours", accuracy_text, "max", True),
        Column("logs", "authors' logs", accuracy_text, "max", True),
    )

    def headline(self, row: Row) -> tuple[str, float | None, float | None]:
        """The mean accuracy over the last 500 rounds; that of the authors' log."""
        texts = {(plain(panel), plain(name)): text for panel, of in PUBLISHED.items() for name, text in of.items()}
        text, values = texts.get((row.cell["participation"], row.cell["method"])), row.window(500)
        value = sum(values) / len(values) if values else None
        return row.metric, value, stat_of(text).mean if text else None

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        """The accuracy over the last 500 of 10,000 rounds; the log's."""
        text, last = PUBLISHED[panel].get(line), min(int(group.runs[0].config["rounds"]) // 10, 500)
        return {"ours": last_k(group, ACCURACY, last), "logs": stat_of(text) if text else NONE, "runs": group}

    def caption(self, values: Values) -> str:
        return "Test accuracy in % over the last tenth of the rounds, at most 500."

    def claims(self, values: Values) -> list[Claim]:
        ends = {panel: {name: of["ours"] for name, of in lines.items()} for panel, lines in values.items()}
        claims = [
            _most_accurate(f"{panel}: FOCUS is the most accurate", stats, PUBLISHED[panel])
            for panel, stats in ends.items()
        ]
        claims += [
            fastest(panel, {name: of["runs"] for name, of in values[panel].items()}, stats)
            for panel, stats in ends.items()
        ]
        return [claim for claim in claims if claim is not None]


@EXPERIMENTS.register("focus/fig9-start", paper="FOCUS [1] fig. 9")
class Fig9Start(Images):
    """The first 1,000 of figure 9's 10,000 rounds, beside the authors' logs of the same rounds.

    The log of FedAvg is also compared with a sequential FedAvg, in which the sampled clients train one after the other.
    Two Bernoulli logs are also compared with runs whose network has dropout; the paper does not mention dropout.
    """

    rounds, margin = 1000, 0.05  # the margin of the accuracy; in the logs most methods differ by more
    options: ClassVar = {"eval.every": 25}
    smoke: ClassVar = Images.smoke | {"rounds": 100}
    paper: ClassVar = {"rounds": rounds}
    # the methods with a log, and variants of them
    compared: ClassVar[Mapping[str, Sequence[str]]] = {
        "Bernoulli": [*PUBLISHED["Bernoulli"], *DROPOUT],
        "Markov": [*PUBLISHED["Markov"], SEQUENCE],
    }
    axes: ClassVar = {"participation": PANELS, "method": STARTED}

    def has(self, point: Point, scale: str) -> bool:
        return point.method in self.compared[point.participation]

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        rounds = cache.pick(100, self.rounds)
        last = rounds // 5
        authors = logs() if cache.scale == "paper" else {}
        groups = nest(self.groups(cache), "participation", "method")
        rows, claims, plots = list[dict[str, Any]](), list[Claim](), []
        for panel, lines in groups.items():
            known = {name: authors.get((panel, name), {}) for name in lines}
            for name, group in lines.items():
                end = Stat.over([v for r, v in known[name].items() if rounds - last < r <= rounds])
                rows.append({"panel": panel, "method": name, "ours": last_k(group, ACCURACY, last), "logs": end})
                claims += [self._close(panel, name, rows[-1]["ours"], end)] if authors else []
            shown = {
                name: [(r - 1, value) for r, value in log.items() if r <= rounds]
                for name, log in known.items()
                if SHARED.get(name) not in lines
            }
            plots.append(draw.Plot(f"{panel} participation", lines, ACCURACY, logs=shown))
        columns = [
            Column("panel", "participation"),
            Column("method", "method"),
            Column("ours", "ours", accuracy_text),
            Column("logs", "authors' logs", accuracy_text),
        ]
        caption = f"Test accuracy in %, mean ± std over the measurements of rounds {rounds - last + 1} to {rounds}."
        looks = {point.method: LOOKS[point.method] for point in self.points("paper")}
        figures = {"fig9_start": draw.curves(plots, draw.styles(looks))}
        return Findings([ReportTable("fig9_start", caption, columns, rows)], claims, figures, NOTES)

    def _close(self, panel: str, name: str, stat: Stat, log: Stat) -> Claim:
        """The claim that the accuracy of a method, `stat`, differs from its log by at most the margin."""
        whose = f"{SHARED[name]}'s" if name in SHARED else "its"
        text = f"{panel}: {name} is within {100 * self.margin:g} points of {whose} log"
        holds = abs(_level(stat) - log.mean) <= self.margin
        return Claim(text, holds, f"{accuracy_text(stat)} %", published=f"{accuracy_text(log)} %")


@EXPERIMENTS.register("focus/fig9-rates", paper="FOCUS [1] fig. 9")
class Fig9Rates(Images):
    """SG-FOCUS and its rivals on CIFAR-10 under Bernoulli participation, each at its best learning rate.

    With one learning rate for all, as in the figure, a round's step of FOCUS is ten times as long as FedAvg's.
    """

    choices, curves, name = ("method", "lr"), ("test/loss",), "{method}, lr {lr:g}"
    smoke: ClassVar = Images.smoke | {"rounds": 100}
    paper: ClassVar = {"rounds": ROUNDS}
    axes: ClassVar = {"method": LINES, "lr": {lr: {"local.lr": lr} for lr in RATES}}
    small: ClassVar = {"lr": RATES[2:]}

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        groups, last = self.groups(cache), cache.pick(30, 500)
        ends = nest({point: last_k(group, ACCURACY, last) for point, group in groups.items()}, "method", "lr")
        best = {name: max(of_lr, key=lambda lr, of_lr=of_lr: _level(of_lr[lr])) for name, of_lr in ends.items()}  # type: ignore[misc]
        rates = sorted({point.lr for point in groups})
        rows = [
            {"method": name, "best": best[name]} | {f"{lr:g}": of_lr.get(lr, NONE) for lr in rates}
            for name, of_lr in ends.items()
        ]
        columns = [Column("method", "method"), Column("best", "best lr", general, None, True)]
        columns += [Column(f"{lr:g}", f"lr {lr:g}", accuracy_text, "max", True) for lr in rates]
        lines = {name: groups[Point(method=name, lr=lr)] for name, lr in best.items()}
        plots = [draw.Plot("each method at its best rate", lines, m, window=10) for m in (ACCURACY, "test/loss")]
        claim = _most_accurate(
            "FOCUS is the most accurate, each method at its best learning rate",
            {name: of_lr[best[name]] for name, of_lr in ends.items() if len(of_lr) == cache.pick(2, len(RATES))},
        )
        table = ReportTable("fig9_rates", f"Test accuracy in % over the last {last} rounds.", columns, rows)
        return Findings(
            [table], [claim] if claim else [], {"fig9_rates": draw.curves(plots, draw.styles(LOOKS))}, NOTES[1:]
        )


def fastest(panel: str, lines: Mapping[str, Group], ends: Mapping[str, Stat]) -> Claim | None:
    """The claim that FOCUS is the first to reach 90 % of the best final accuracy of the other methods.

    panel: the kind of participation; lines: method -> runs; ends: method -> final accuracy. None without runs of FOCUS
    and of another method.
    """
    if "FOCUS" not in lines or len(lines) < 2:
        return None
    target = 0.9 * max(stat.mean for name, stat in ends.items() if name != "FOCUS")
    reached = {name: mean_cost(group_to_target(group, ACCURACY, target)) for name, group in lines.items()}
    evidence = ", ".join(f"{name} {cost_or_dash(value)}" for name, value in sorted(reached.items(), key=lambda i: i[1]))
    holds = reached["FOCUS"] < min(value for name, value in reached.items() if name != "FOCUS")
    return Claim(f"{panel}: FOCUS is the fastest, in rounds to {100 * target:.1f} %", holds, evidence)


def _most_accurate(text: str, ends: Mapping[str, Stat], logs: Mapping[str, str] | None = None) -> Claim | None:
    """The claim that FOCUS has the highest of these accuracies; None without FOCUS and another method.

    logs: method -> accuracy in the authors' log.
    """
    if "FOCUS" not in ends or len(ends) < 2:
        return None
    evidence = ", ".join(f"{name} {100 * stat.mean:.1f}" for name, stat in ends.items())
    published = ", ".join(f"{name} {text.partition('±')[0]}" for name, text in (logs or {}).items())
    return Claim(text, max(ends, key=lambda name: _level(ends[name])) == "FOCUS", evidence, published=published)


def _level(stat: Stat) -> float:
    return stat.mean if math.isfinite(stat.mean) else 0.0
