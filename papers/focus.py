"""FOCUS [1] (Ying, Li & Yang, NeurIPS 2025): ridge regression, partitions, SG-FOCUS on CIFAR-10: figures 4, 8, 9."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from papers import numbers
from papers.base import EXPERIMENTS, Claim, Findings, PaperResult
from papers.grid import Axis, Grid, Point, by
from papers.ledger import Row
from papers.lines import Lines, Sweep, Sweeps, Values, best_value
from papers.numbers import ACCURACY, accuracy_text, cost_or_dash, listing, mean_cost, ordered, stat_of, table_of
from papers.run_cache import RunCache
from raylfl.core.arrays import Floats
from raylfl.report import partition_plot
from raylfl.report.derived import Stat, group_to_target, last_k, to_target
from raylfl.report.runs import Group
from raylfl.report.tables import Column
from raylfl.report.wording import number

DISTANCE = "global/distance"
METHODS = {name: name.lower() for name in ("FOCUS", "FedAvg", "FedAU", "MIFA", "SCAFFOLD")} | {"ProxSkip": "scaffnew"}
EXACT = 1e-12  # relative distance that counts as exact; rounding allows about 1e-15
# Fig. 4 counts ProxSkip's variates as sent; our clients compute them from the next x, so that a run counts half
COUNTED = {"ProxSkip": 2.0}
COUNTED_NOTE = (
    "floats as the paper counts them: 2d in each direction for SCAFFOLD and ProxSkip (our ProxSkip sends d); d is "
    "the number of parameters"
)
REMARKS = {
    "MIFA": "it diverges in the paper's fig. 4, whose notebook measures updates from the client's own last model",
    "ProxSkip": "in ours, idle clients keep their variates, so that the variates sum to 0 and x* is a fixed point; if "
    "idle clients also renew theirs, ProxSkip diverges, as in fig. 4",
}
SAME = (("FedAvg", "FedAU", "MIFA"), ("SCAFFOLD", "ProxSkip"))  # identical under full participation
COSTS = {f"{axis} to {goal:g}": (axis, goal) for goal in (1e-6, EXACT) for axis in ("rounds", "floats")}


@EXPERIMENTS.register("focus/fig4", paper="FOCUS [1] fig. 4")
class Fig4(Lines):
    """Ridge regression under full, uniform and arbitrary participation: six methods by floats sent."""

    scales, base, cells = (), ("reproduce/focus_fig4",), "label"
    panels: ClassVar[Axis] = {  # with the rounds to run, until SCAFFOLD is exact
        "full": {"rounds": 450},
        "uniform": {"base": ["preset/focus_fig4_uniform"], "rounds": 600},
        "arbitrary": {"base": ["preset/focus_fig4_arbitrary"], "rounds": 1000},
    }
    methods: ClassVar = {name: {"algorithm.name": key} for name, key in METHODS.items()}
    axes: ClassVar = {"participation": panels, "method": methods}
    within: ClassVar = {"full": 200, "uniform": 500, "arbitrary": 3000}  # rounds after which FOCUS is exact
    measures: ClassVar = {
        cost: partial(to_target, metric=DISTANCE, target=goal, axis=axis) for cost, (axis, goal) in COSTS.items()
    } | {
        "level": lambda run: level(run.column(DISTANCE)),
        "straightness": lambda run: straightness(run.column(DISTANCE)),
        "stalls": lambda run: float(is_stalled(run.column(DISTANCE))),
    }
    curves = ("cost/uplink_floats", "cost/downlink_floats")
    panel, heading, metrics, stem = "participation", "{} participation", (DISTANCE,), "fig4"
    looks, notes = METHODS, [COUNTED_NOTE]
    caption = "Relative distance |x - x*|/|x*|; floats are the sum of both directions."
    plot: ClassVar = {"axis": "floats", "limits": (1e-16, 10), "factors": COUNTED, "start": 1.0}
    columns = (
        Column("end", "ends at", partial(number, digits=2), "min", True),
        *(Column(cost.replace(" to ", ""), cost, cost_or_dash, "min", True) for cost in COSTS),
    )

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        (run,) = group.runs
        values = {key: math.inf if (value := self.measure(run, key)) is None else value for key in self.measures}
        values |= {key: value * COUNTED.get(line, 1.0) for key, value in values.items() if key.startswith("floats")}
        costs = {cost.replace(" to ", ""): values[cost] for cost in COSTS}
        return values | costs | {"end": values["level"], "curve": run.column(DISTANCE)}

    def claims(self, values: Values) -> list[Claim]:
        def of(name: str, key: str) -> dict[str, float]:
            return {panel: lines[name][key] for panel, lines in values.items()}

        def ends(text: str, holds: bool, levels: Mapping[str, float], remark: str = "") -> Claim:
            return Claim(text, holds, "relative distance at the end: " + listing(levels, "{:.2g}".format), remark)

        allowed = ", ".join(f"{rounds} ({panel} participation)" for panel, rounds in self.within.items())
        near = f"FOCUS comes within a relative distance of {EXACT:g} of x*, after at most {allowed} rounds"
        linear = "FOCUS converges linearly: log distance against rounds is a straight line"
        full = "ProxSkip is exact under full participation"
        fails = "ProxSkip does not converge under partial participation"
        spent, straight = of("FOCUS", f"rounds to {EXACT:g}"), of("FOCUS", "straightness")
        levels = {name: of(name, "level") for name in METHODS}
        proxskip, scaffold = levels["ProxSkip"], levels["SCAFFOLD"]
        others = {panel: end for panel, end in proxskip.items() if panel != "full"}
        within = all(spent[panel] <= self.within[panel] for panel in values)
        fewest, ahead, told = f"FOCUS reaches a relative distance of {EXACT:g} with the fewest floats", [], []
        for panel, lines in values.items():
            costs = {name: results[f"floats to {EXACT:g}"] for name, results in lines.items()}
            other, name = min((cost, name) for name, cost in costs.items() if name != "FOCUS")
            ahead.append(costs["FOCUS"] < other)
            told.append(f"{panel} {cost_or_dash(costs['FOCUS'])} (next: {name}, {cost_or_dash(other)})")
        return [
            Claim(near, within, listing(spent, "{:.0f}".format) + " rounds"),
            Claim(linear, all(r2 > 0.95 for r2 in straight.values()), "R^2 " + listing(straight, "{:.3f}".format)),
            Claim(fewest, all(ahead), "; ".join(told)),
            ends("SCAFFOLD is exact", max(scaffold.values()) < EXACT, scaffold),
            *(
                ends(f"{name} stalls", all(of(name, "stalls").values()), levels[name], REMARKS.get(name, ""))
                for name in ("FedAvg", "FedAU", "MIFA")
            ),
            Claim(full, proxskip["full"] < EXACT, f"relative distance at the end: {proxskip['full']:.2g}"),
            ends(fails, min(others.values()) > 1e-3, others, REMARKS["ProxSkip"]),
            *(_same(values["full"], *names) for names in SAME),
        ]


def level(distance: Floats) -> float:
    """The median of a method's relative distance over the last tenth of the rounds."""
    return float(np.median(distance[-max(len(distance) // 10, 1) :]))


def straightness(distance: Floats) -> float:
    """The R^2 of a straight line through log |x_r - x*| over rounds until EXACT; 1: exactly linear convergence."""
    until = int(np.argmax(distance <= EXACT)) or len(distance)
    return float(np.corrcoef(np.arange(until), np.log10(distance[:until]))[0, 1] ** 2)


def is_stalled(distance: Floats) -> bool:
    """Whether a method ends between its start (1) and x*, and in its last quarter hardly moves."""
    third, last = (np.median(part) for part in np.array_split(distance, 4)[2:])
    return bool(1e-6 < last < 1 and last > third / 2)


def _same(lines: Mapping[str, Mapping[str, Any]], *names: str) -> Claim:
    """The claim in the caption of fig. 4 that the named methods are identical under full participation."""
    first, *others = (lines[name]["curve"] for name in names)
    apart = max(float(np.nanmax(np.abs(other - first))) for other in others)
    text = f"under full participation {', '.join(names)} are identical"
    return Claim(text, apart < 1e-12, f"their distances differ by at most {apart:.1g}")


@EXPERIMENTS.register("focus/fig8", paper="FOCUS [1] fig. 8")
class Bubbles(PaperResult):
    """Bubble plot of CIFAR-10's labels over 32 clients, Dirichlet(0.05)."""

    def run(self, cache: RunCache) -> Findings:
        counts = numbers.counts_of({"name": "dirichlet_client", "alpha": 0.05}, numbers.CIFAR10, clients=32)
        two = np.sort(counts / counts.sum(axis=1, keepdims=True), axis=1)[:, -2:].sum(axis=1)
        evidence = f"a client's two largest classes hold {100 * np.median(two):.1f} % of its samples in the median, "
        evidence += f"{100 * two.min():.1f} % at the least"
        text = "the data of each client mainly cover one or two classes"
        figure = partition_plot.figure(counts, None, "Dirichlet 0.05, 32 clients")
        return Findings([], [Claim(text, bool(np.median(two) > 0.9), evidence)], {"fig8": figure})


DIVISOR = "SCAFFOLD, divisor 10"  # SCAFFOLD in the form of the public code and of its logs
SEQUENCE = "FedAvg in sequence"  # each client starts from the model of the client before, as in SFL
DROPOUT = {"FOCUS, dropout": "FOCUS", f"{DIVISOR}, dropout": DIVISOR}  # with another network -> without
SHARED = {SEQUENCE: "FedAvg"} | DROPOUT  # variant -> the method with whose log it is compared
LINES: dict[str, dict[str, Any]] = {
    name: {"algorithm.name": METHODS[name]} for name in ("FOCUS", "FedAvg", "FedAU", "MIFA", "SCAFFOLD")
} | {DIVISOR: {"algorithm.name": "scaffold", "algorithm.divisor": 10}}
STARTED = LINES | {SEQUENCE: {"algorithm.name": "sfl"}}
STARTED |= {line: LINES[name] | {"model.init_args.dropout": 0.25} for line, name in DROPOUT.items()}
LOOKS = {name: METHODS.get(name, "fedprox") for name in LINES} | {"FedAU": "fedacs"}  # FOCUS is blue, too
LOOKS |= {SEQUENCE: "sfl", "FOCUS, dropout": "fedaware", f"{DIVISOR}, dropout": "fedvarp"}
# the rates of the public code: a client takes part with probability 0.2, whether or not it did in the round before
PANELS: Axis = {"Bernoulli": {}, "Markov": {"participation": {"name": "markov", "p_on": 0.2, "p_off": 0.8}}}
RATES = (0.002, 0.006, 0.02, 0.06)  # the published learning rate, and larger ones
# participation -> method -> mean and std over the last 500 rounds of the authors' public logs
PUBLISHED = {row.pop("participation"): {k: v for k, v in row.items() if v} for row in table_of("focus_fig9")}
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


def logs() -> dict[tuple[str, str], dict[int, float]]:
    """(participation, method or variant in SHARED) -> the authors' log: number of finished rounds -> test accuracy."""
    logs: dict[tuple[str, str], dict[int, float]] = {}
    for line in numbers.measurements(numbers.path_of("published/focus_fig9.csv.gz")):
        method = DIVISOR if line["method"] == "SCAFFOLD" else line["method"]
        log = logs.setdefault((line["participation"].capitalize(), method), {})
        log[int(line["round"]) + 1] = float(line["test_accuracy_percent"]) / 100
    shared = {(panel, line): log for line, name in SHARED.items() for (panel, key), log in logs.items() if key == name}
    return logs | shared


HEADS = {"ours": "ours", "logs": "authors' logs"}


class Images(Grid):
    """SG-FOCUS and its rivals on CIFAR-10, 10,000 rounds unless the options say otherwise."""

    base, choices = ("reproduce/focus_fig9",), ("participation", "method")
    axes: ClassVar[dict[str, Axis]] = {"participation": PANELS, "method": LINES}
    panel = "participation"
    heading: ClassVar[str] = "{} participation"
    looks: ClassVar[Mapping[str, str]] = LOOKS
    notes: ClassVar[Sequence[str]] = NOTES
    smoke: ClassVar = {"num_clients": 32, "rounds": 300, "local.batch_size": 16, "local.lr": 0.02}


@EXPERIMENTS.register("focus/fig9", paper="FOCUS [1] fig. 9")
class Fig9(Images, Lines):
    """SG-FOCUS and its rivals on CIFAR-10 under Bernoulli and Markov participation, at one learning rate."""

    time = "about 60 hours on two cores"
    curves = ("test/loss",)
    metrics, stem = (ACCURACY, "test/loss"), "fig9"
    caption = "Test accuracy in % over the last tenth of the rounds, at most 500."
    columns = tuple(Column(k, head, accuracy_text, "max", True) for k, head in HEADS.items())

    def headline(self, point: Point, row: Row) -> tuple[str, float | None, float | None]:
        text, values = PUBLISHED[point.participation].get(point.method), row.window(500)
        value = sum(values) / len(values) if values else None
        return row.metric, value, stat_of(text).mean if text else None

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        text, last = PUBLISHED[panel].get(line), min(int(group.runs[0].config["rounds"]) // 10, 500)
        return {"ours": last_k(group, ACCURACY, last), "logs": stat_of(text) if text else Stat.over([])}

    def claims(self, values: Values) -> list[Claim]:
        claims = []
        for panel, lines in values.items():
            ends, runs = ({name: of[key] for name, of in lines.items()} for key in ("ours", "runs"))
            claims += most_accurate(f"{panel}: FOCUS is the most accurate", ends, PUBLISHED[panel])
            if "FOCUS" in runs and len(runs) > 1:
                target = 0.9 * max(stat.mean for name, stat in ends.items() if name != "FOCUS")
                reached = {name: mean_cost(group_to_target(group, ACCURACY, target)) for name, group in runs.items()}
                holds = reached["FOCUS"] < min(value for name, value in reached.items() if name != "FOCUS")
                text = f"{panel}: FOCUS is the fastest, in rounds to {100 * target:.1f} %"  # of the best other accuracy
                claims.append(Claim(text, holds, listing(ordered(reached), cost_or_dash)))
        return claims


@EXPERIMENTS.register("focus/fig9-start", paper="FOCUS [1] fig. 9")
class Fig9Start(Images, Lines):
    """The first 1,000 of figure 9's 10,000 rounds, beside the authors' logs of the same rounds."""

    margin = 0.05  # the margin of the accuracy; in the logs most methods differ by more
    rounds: ClassVar = {"smoke": 100, "paper": 1000}
    options: ClassVar = {"eval.every": 25}
    smoke: ClassVar = Images.smoke | {"rounds": rounds["smoke"]}
    paper: ClassVar = {"rounds": rounds["paper"]}
    compared: ClassVar = {  # methods with a log, and variants, as the paper does not say all that its code does
        "Bernoulli": [*PUBLISHED["Bernoulli"], *DROPOUT],
        "Markov": [*PUBLISHED["Markov"], SEQUENCE],
    }
    looks: ClassVar = {name: LOOKS[name] for names in compared.values() for name in names}
    axes: ClassVar = {"participation": PANELS, "method": STARTED}
    blocks, stem = False, "fig9_start"
    columns = tuple(Column(k, head, accuracy_text) for k, head in HEADS.items())

    def has(self, point: Point, scale: str) -> bool:
        return point.method in self.compared[point.participation]

    def lines(self, cache: RunCache) -> dict[Any, dict[str, Group]]:
        if cache.scale == "paper":
            logs()  # raises DataMissing without them, before a run starts
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
        end = next(of["rounds"] for lines in values.values() for of in lines.values())
        return f"Test accuracy in %, mean ± std over the measurements of rounds {end - end // 5 + 1} to {end}."

    def claims(self, values: Values) -> list[Claim]:
        claims = []
        for panel, name, of in ((panel, name, of) for panel, lines in values.items() for name, of in lines.items()):
            text = f"{panel}: {name} is within {100 * self.margin:g} points of "
            text += f"{SHARED[name]}'s log" if name in SHARED else "its log"
            level = of["ours"].mean if math.isfinite(of["ours"].mean) else 0.0
            ours, theirs = (f"{accuracy_text(of[key])} %" for key in ("ours", "logs"))
            if of["logs"].count:
                claims.append(Claim(text, abs(level - of["logs"].mean) <= self.margin, ours, published=theirs))
        return claims


@EXPERIMENTS.register("focus/fig9-rates", paper="FOCUS [1] fig. 9")
class Fig9Rates(Images, Sweeps):
    """SG-FOCUS and its rivals on CIFAR-10 under Bernoulli participation, each at its best learning rate."""

    choices, name = ("method", "lr"), "{method}, lr {lr:g}"
    smoke: ClassVar = Images.smoke | {"rounds": 100}
    paper: ClassVar = {"rounds": 10_000}
    axes: ClassVar = {"method": LINES, "lr": {lr: {"local.lr": lr} for lr in RATES}}
    small: ClassVar = {"lr": RATES[2:]}
    stem, notes = "fig9_rates", NOTES[1:]
    heading, caption = "Bernoulli participation", "Test accuracy in % over the last rounds."

    def sweeps(self, cache: RunCache) -> Mapping[Point, Sweep]:
        last = 30 if cache.scale == "smoke" else 500
        return by({point: last_k(group, ACCURACY, last) for point, group in self.groups(cache).items()}, "lr")

    def claims(self, sweeps: Mapping[Point, Sweep]) -> list[Claim]:
        text = "FOCUS is the most accurate, each method at its best learning rate"
        return most_accurate(text, {cell.method: sweep[best_value(sweep)] for cell, sweep in sweeps.items()})


def most_accurate(text: str, ends: Mapping[str, Stat], logs: Mapping[str, str] | None = None) -> list[Claim]:
    if "FOCUS" not in ends or len(ends) < 2:
        return []
    evidence = listing({name: stat.mean for name, stat in ends.items()})
    published = listing(logs or {}, lambda text: text.partition("±")[0])
    return [Claim(text, best_value(ends) == "FOCUS", evidence, published=published)]
