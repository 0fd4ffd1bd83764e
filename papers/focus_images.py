"""FOCUS [1] (Ying, Li & Yang, NeurIPS 2025), figure 9: SG-FOCUS on CIFAR-10, at one and at the best learning rates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from papers import texts
from papers.base import EXPERIMENTS, Claim
from papers.focus import METHODS
from papers.grid import Axis, Grid, Point, by
from papers.ledger import Row
from papers.lines import Lines, Sweep, Sweeps, Values, best_value
from papers.run_cache import RunCache
from papers.texts import ACCURACY, accuracy_text, cost_or_dash, listing, mean_cost, ordered, stat_of, table_of
from raylfl.report.derived import Stat, group_to_target, last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column

DIVISOR = "SCAFFOLD, divisor 10"  # SCAFFOLD in the form of the public code and of its logs
SEQUENCE = "FedAvg in sequence"  # each client starts from the model of the client before, as in SFL
DROPOUT = {"FOCUS, dropout": "FOCUS", f"{DIVISOR}, dropout": DIVISOR}  # with another network -> without
SHARED = {SEQUENCE: "FedAvg"} | DROPOUT  # variant -> the method with whose log it is compared
LOGS = "published/focus_fig9.csv.gz"
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
    for line in texts.measurements(texts.path_of(LOGS)):
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
    caption = "Test accuracy in % over the last tenth of the rounds, at most 500."
    looks, notes = LOOKS, NOTES
    columns = (
        Column("ours", "ours", accuracy_text, "max", True),
        Column("logs", "authors' logs", accuracy_text, "max", True),
    )

    def headline(self, point: Point, row: Row) -> tuple[str, float | None, float | None]:
        text, values = PUBLISHED[point.participation].get(point.method), row.window(500)
        value = sum(values) / len(values) if values else None
        return row.metric, value, stat_of(text).mean if text else None

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        text, last = PUBLISHED[panel].get(line), min(int(group.runs[0].config["rounds"]) // 10, 500)
        return {"ours": last_k(group, ACCURACY, last), "logs": stat_of(text) if text else NONE}

    def claims(self, values: Values) -> list[Claim]:
        claims = []
        for panel, lines in values.items():
            ends, runs = ({name: of[key] for name, of in lines.items()} for key in ("ours", "runs"))
            claims += most_accurate(f"{panel}: FOCUS is the most accurate", ends, PUBLISHED[panel])
            claims += fastest(panel, runs, ends)
        return claims


@EXPERIMENTS.register("focus/fig9-start", paper="FOCUS [1] fig. 9")
class Fig9Start(Lines, Images):
    """The first 1,000 of figure 9's 10,000 rounds, beside the authors' logs of the same rounds.

    Some logs are also compared with variants of their methods, as the paper does not say all that its code does.
    """

    margin = 0.05  # the margin of the accuracy; in the logs most methods differ by more
    rounds: ClassVar = {"smoke": 100, "paper": 1000}
    options: ClassVar = {"eval.every": 25}
    smoke: ClassVar = Images.smoke | {"rounds": rounds["smoke"]}
    paper: ClassVar = {"rounds": rounds["paper"]}
    # the methods with a log, and variants of them
    compared: ClassVar[Mapping[str, Sequence[str]]] = {
        "Bernoulli": [*PUBLISHED["Bernoulli"], *DROPOUT],
        "Markov": [*PUBLISHED["Markov"], SEQUENCE],
    }
    axes: ClassVar = {"participation": PANELS, "method": STARTED}
    panel, heading, blocks, stem, notes = "participation", "{} participation", False, "fig9_start", NOTES
    looks: ClassVar = {name: LOOKS[name] for names in compared.values() for name in names}
    columns = (Column("ours", "ours", accuracy_text), Column("logs", "authors' logs", accuracy_text))

    def has(self, point: Point, scale: str) -> bool:
        return point.method in self.compared[point.participation]

    def lines(self, cache: RunCache) -> dict[Any, dict[str, Group]]:
        """Panel -> line -> its runs. Raises DataMissing without the logs, before a run starts."""
        if cache.scale == "paper":
            logs()
        return super().lines(cache)

    def values_of(self, panel: Any, lines: Mapping[str, Group], scale: str) -> dict[str, dict[str, Any]]:
        authors, rounds, values = logs() if scale == "paper" else {}, self.rounds[scale], {}
        for name, group in lines.items():
            log = {r: value for r, value in authors.get((panel, name), {}).items() if r <= rounds}
            end = Stat.over([value for r, value in log.items() if r > rounds - rounds // 5])
            values[name] = {"ours": last_k(group, ACCURACY, rounds // 5), "logs": end, "log": log, "rounds": rounds}
        return values

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        shown = {name: of["log"] for name, of in lines.items() if SHARED.get(name) not in lines}
        return {"logs": {name: [(r - 1, value) for r, value in log.items()] for name, log in shown.items()}}

    def caption_of(self, values: Values) -> str:
        rounds = next(of["rounds"] for lines in values.values() for of in lines.values())
        window = f"rounds {rounds - rounds // 5 + 1} to {rounds}"
        return f"Test accuracy in %, mean ± std over the measurements of {window}."

    def claims(self, values: Values) -> list[Claim]:
        claims = []
        for panel, name, of in ((panel, name, of) for panel, lines in values.items() for name, of in lines.items()):
            text = f"{panel}: {name} is within {100 * self.margin:g} points of "
            text += f"{SHARED[name]}'s log" if name in SHARED else "its log"
            level = of["ours"].mean if math.isfinite(of["ours"].mean) else 0.0
            holds = abs(level - of["logs"].mean) <= self.margin
            ours, theirs = (f"{accuracy_text(of[key])} %" for key in ("ours", "logs"))
            claims += [Claim(text, holds, ours, published=theirs)] if of["logs"].count else []
        return claims


@EXPERIMENTS.register("focus/fig9-rates", paper="FOCUS [1] fig. 9")
class Fig9Rates(Sweeps, Images):
    """SG-FOCUS and its rivals on CIFAR-10 under Bernoulli participation, each at its best learning rate."""

    choices, name = ("method", "lr"), "{method}, lr {lr:g}"
    smoke: ClassVar = Images.smoke | {"rounds": 100}
    paper: ClassVar = {"rounds": ROUNDS}
    axes: ClassVar = {"method": LINES, "lr": {lr: {"local.lr": lr} for lr in RATES}}
    small: ClassVar = {"lr": RATES[2:]}
    stem, looks, notes = "fig9_rates", LOOKS, NOTES[1:]
    heading, caption = "Bernoulli participation", "Test accuracy in % over the last rounds."

    def sweeps(self, cache: RunCache) -> Mapping[Point, Sweep]:
        last = 30 if cache.scale == "smoke" else 500
        return by({point: last_k(group, ACCURACY, last) for point, group in self.groups(cache).items()}, "lr")

    def claims(self, sweeps: Mapping[Point, Sweep]) -> list[Claim]:
        text = "FOCUS is the most accurate, each method at its best learning rate"
        return most_accurate(text, {cell.method: sweep[best_value(sweep)] for cell, sweep in sweeps.items()})


def fastest(panel: str, lines: Mapping[str, Group], ends: Mapping[str, Stat]) -> list[Claim]:
    """The claim that FOCUS is the first to reach 90 % of the best final accuracy of the other methods.

    Empty without runs of FOCUS and of another method.
    """
    if "FOCUS" not in lines or len(lines) < 2:
        return []
    target = 0.9 * max(stat.mean for name, stat in ends.items() if name != "FOCUS")
    reached = {name: mean_cost(group_to_target(group, ACCURACY, target)) for name, group in lines.items()}
    holds = reached["FOCUS"] < min(value for name, value in reached.items() if name != "FOCUS")
    text = f"{panel}: FOCUS is the fastest, in rounds to {100 * target:.1f} %"
    return [Claim(text, holds, listing(ordered(reached), cost_or_dash))]


def most_accurate(text: str, ends: Mapping[str, Stat], logs: Mapping[str, str] | None = None) -> list[Claim]:
    """The claim that FOCUS has the highest of these accuracies; empty without FOCUS and another method."""
    if "FOCUS" not in ends or len(ends) < 2:
        return []
    evidence = listing({name: stat.mean for name, stat in ends.items()})
    published = listing(logs or {}, lambda text: text.partition("±")[0])
    return [Claim(text, best_value(ends) == "FOCUS", evidence, published=published)]
