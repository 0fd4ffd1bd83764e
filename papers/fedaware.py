"""FedAWARE [4] (Zeng, Xu, Pan, Wang & Tang 2024): table 1, figures 3 to 9."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim, plain
from papers.grid import Axis, Grid, Point, by
from papers.ledger import Row
from papers.lines import Lines, Values
from papers.numbers import ACCURACY, accuracy_text, difference, listing, ordered, percent, stat_of, table_of
from papers.run_cache import RunCache
from raylfl.errors import BadConfig
from raylfl.report.derived import Stat, best_value, final_rounds, last_k
from raylfl.report.runs import Group
from raylfl.report.statistics import ConfidenceInterval, paired_test
from raylfl.report.tables import Column
from raylfl.report.wording import number, stat_text

SKEWED = {"partition.min_size": 2}  # at scale `smoke`: 1,438 digits over 50 clients
DRAWN: dict[str, Any] = {"local.batch_size": {"uniform": [5, None]}}
# label skew alone; with unequal local steps; with local steps that also change in every round
SYSTEMS: dict[str, dict[str, Any]] = {
    "statistical only": {"base": ["preset/fedaware_statistical"]},
    "hybrid": {"base": ["preset/fedaware_hybrid"], "smoke": SKEWED},
    "hybrid+": {"base": ["preset/fedaware_hybrid_plus"], "smoke": SKEWED | DRAWN},
}
Tuning = Mapping[str, Mapping[Any, Mapping[str, Any]]]  # method -> value of its tuned option -> its options


def tuned(method: str, option: str = "", grid: Sequence[Any] = (None,)) -> dict[Any, dict[str, Any]]:
    """Value of a method's tuned option, or None -> the method's options."""
    return {value: {"algorithm.name": method} | ({option: value} if option else {}) for value in grid}


NORMALISED = "FedAWARE, normalised"  # as in the authors' public code; Alg. 1 has the momenta as they are
FORMS = ("FedAWARE", NORMALISED)
METHODS: Tuning = {  # App. C.1
    "FedAvg": tuned("fedavg"),
    "FedAvgM": tuned("fedavgm", "algorithm.beta", (0.7, 0.9, 0.97, 0.997)),
    "FedProx": tuned("fedprox", "algorithm.mu", (0.01, 0.1, 1.0, 10.0)),
    "SCAFFOLD": tuned("scaffold"),
    "FedNova": tuned("fednova"),
    "FedYogi": tuned("fedyogi", "algorithm.gamma", [round(10 ** (e / 2), 6) for e in range(-6, 3)]),
    "FedDyn": tuned("feddyn", "algorithm.alpha", (0.1, 0.01, 0.001)),
    "FedAWARE": tuned("fedaware"),
    NORMALISED: tuned("fedaware", "algorithm.normalize", (True,)),
}
LOOKS = {name: name.lower() for name in METHODS}
DIVERSITY = "global/diversity"  # Def. 3.1, of all clients' gradients


def hybrid(*files: str) -> Axis:
    """The axis of the hybrid system alone, with further config files."""
    return {"hybrid": SYSTEMS["hybrid"] | {"base": [*SYSTEMS["hybrid"]["base"], *files]}}


class Scenario(Grid):
    """CIFAR-10 on the axis `system` of heterogeneity."""

    base, seeds = ("reproduce/fedaware_table1",), (0, 1, 2)  # the paper does not give the number of seeds
    options: ClassVar[dict[str, Any]] = {"eval.diversity": True}
    # with lr 0.01, 100 rounds are too few to learn; 20: the smallest images for which the convolutions have an output
    smoke: ClassVar[dict[str, Any]] = {"local.lr": 0.05, "data.init_args.upscale": 20}


class Tuned(Scenario):
    """Methods at the best value of a tuned option; at scale `smoke` the middle value, or `smoke_values`, are tried."""

    tuned, smoke_seeds = "tuning", 2
    choices: ClassVar[tuple[str, ...]] = ("method",)
    methods: ClassVar[Tuning] = METHODS
    smoke_values: ClassVar[Sequence[Any]] = ()

    def points(self, scale: str) -> list[Point]:
        points = []
        for point in super().points(scale):
            grid = list(self.methods[point.method])
            if scale == "smoke" and len(grid) > 1:
                grid = list(self.smoke_values) or [grid[len(grid) // 2]]
            points += [point.but(tuning=value) for value in grid]
        return points

    def label(self, point: Point) -> str:
        value = point.get("tuning")
        return f"{point.system}, {point.method}" + ("" if value is None else f" {value}")

    def cell(self, point: Point) -> dict[str, Any]:
        system = {"system": plain(point.system)} if len(self.axes["system"]) > 1 else {}
        tuning = "-" if point.tuning is None else plain(str(point.tuning))
        return {**system, "method": plain(point.method), "tuning": tuning}

    def options_of(self, point: Point, scale: str) -> Mapping[str, Any]:
        return self.methods[point.method][point.tuning]

    def tune(self, cache: RunCache) -> dict[Any, dict[str, Group]]:
        """System -> method -> the runs of its best setting. Raises BadConfig if no method has all its runs."""
        if not (runs := self.best(cache, lambda group: best_accuracy(group).mean)):
            raise BadConfig("no method has the runs of all its settings yet; `raylfl reproduce` makes the missing ones")
        return by(runs, "method", "system")


def best_accuracy(group: Group) -> Stat:
    """Mean and std over seeds of each seed's best finite accuracy, also if it diverged later, as in Table 1."""
    return Stat.over([best_value(run, ACCURACY) for run in group.runs if run.measured(ACCURACY)], of=len(group.runs))


def against(form: str, names: Iterable[str]) -> list[str]:
    """One of FedAWARE's two forms, followed by the names of other methods."""
    return [form, *(name for name in names if name not in FORMS)]


def steady(lines: Mapping[str, Group], form: str, last: int) -> Claim:
    """The claim of Sec. 5 that FedAWARE's accuracy varies least in the last rounds, by paired t tests over seeds."""
    moves: dict[str, list[float]] = {}  # the std of the changes between evaluations, by run
    for name in against(form, lines):
        rows = [run.column(ACCURACY)[run.rounds > run.rounds[-1] - last] for run in lines[name].runs]
        moves[name] = [float(np.diff(row[np.isfinite(row)]).std()) for row in rows]
    evidence = listing(ordered(moves, np.mean), lambda move: f"{100 * np.mean(move):.2f}")
    rivals = [move for name, move in moves.items() if name != form and len(moves[form]) > 1]
    leads = [paired_test(rival, moves[form]).difference for rival in rivals]
    return Claim(f"{form}: its accuracy varies least between evaluations", ahead_of_all(leads), evidence)


def ahead_of_all(leads: Sequence[ConfidenceInterval]) -> bool | None:
    """Whether the intervals of a method's leads over all rivals are above 0; False if one is below 0."""
    if any(lead.high < 0 for lead in leads):
        return False
    return True if leads and all(lead.low > 0 for lead in leads) else None


def most_diverse(values: Mapping[str, Stat], form: str, seeds: int) -> Claim:
    """The claim of Sec. 5 that FedAWARE has a higher final gradient diversity, by Welch's t intervals of the means.

    The std is over seeds and rounds, but only the seeds count as values, which makes the test cautious.
    """
    evidence = listing(ordered(values, lambda stat: -stat.mean), partial(stat_text, metric=DIVERSITY))
    levels = {name: (stat.mean, stat.std, seeds) for name, stat in values.items()}
    leads = [difference(levels[form], level) for name, level in levels.items() if name != form]
    return Claim(f"{form} ends with the highest gradient diversity", ahead_of_all(leads), evidence)


def published_best(method: str, system: str) -> Stat:
    """The accuracy in table 1; the paper does not say which form of FedAWARE has its numbers."""
    rows = {row["method"]: row for row in table_of("fedaware_table1")}
    return stat_of(rows["FedAWARE" if method in FORMS else method][system])


@EXPERIMENTS.register("fedaware/table1", paper="FedAWARE [4] table 1, fig. 4")
class Table1(Tuned, Lines):
    """Best test accuracy of eight methods, FedAWARE in two forms, on CIFAR-10 in three systems of heterogeneity."""

    choices, curves = (), ("train/loss", DIVERSITY)  # figure 5 shares the runs
    axes: ClassVar = {"system": SYSTEMS, "method": {name: {} for name in METHODS}}
    panel, metrics, stem, looks = "system", (ACCURACY, "train/loss"), "table1", LOOKS
    caption, plot = "Best test accuracy, mean ± std over seeds, best tuning.", {"band": "std", "window": 5}
    heads: ClassVar = {"ours": "best accuracy (%): ours", "published": "published"}
    columns = tuple(Column(key, head, accuracy_text, "max", True) for key, head in heads.items())

    def headline(self, point: Point, row: Row) -> tuple[str, float | None, float | None]:
        top = None if row.diverged else max((value for _, value in row.curve), default=None)
        return f"best {row.metric}", top, published_best(point.method, point.system).mean

    lines = Tuned.tune

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        return {"ours": best_accuracy(group), "published": published_best(line, panel)}

    def claims(self, values: Values) -> list[Claim]:
        """The claims of Sec. 5."""
        claims, steadiest = [], []
        for label, lines in values.items():
            ours, theirs = ({name: of[key].mean for name, of in lines.items()} for key in ("ours", "published"))
            runs = {name: of["runs"] for name, of in lines.items()}
            for form in FORMS:
                order = sorted(against(form, METHODS), key=lambda name: -ours[name])
                texts = [listing({name: means[name] for name in order}) for means in (ours, theirs)]
                claims.append(Claim(f"{label}: {form} is best", order[0] == form, texts[0], published=texts[1]))
                claim = steady(runs, form, final_rounds(rounds_of(runs[form])))
                steadiest.append(replace(claim, text=f"{label}: {claim.text}"))
        first, last = values["statistical only"], values["hybrid+"]
        less = [last[name]["ours"].mean < first[name]["ours"].mean for name in METHODS]
        text = "every method loses accuracy from statistical only to hybrid+"
        return [*claims, Claim(text, all(less), f"{sum(less)} of {len(less)} do"), *steadiest]


def rounds_of(group: Group) -> int:
    return int(group.runs[0].config["rounds"])


class Curves(Lines, Scenario):
    """A figure with one panel per metric and the same lines in every panel; means are over the last rounds."""

    caption = "Mean ± std over seeds, and the last tenth of the rounds."

    @property
    def columns(self) -> list[Column]:  # type: ignore[override]
        means = [Column(m, f"{m}, last rounds", partial(stat_text, metric=m), None, True) for m in self.metrics]
        return [Column("best", "best accuracy (%)", accuracy_text, "max", True), *means]

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        means = {metric: last_k(group, metric, final_rounds(rounds_of(group))) for metric in self.metrics}
        return {"best": best_accuracy(group), **means}

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"band": "std", "window": max(1, rounds_of(next(iter(lines.values()))["runs"]) // 50)}


def alphas(key: str, *values: float) -> Axis:
    return {f"alpha {alpha}": {key: alpha} for alpha in values}


@EXPERIMENTS.register("fedaware/fig3", paper="FedAWARE [4] figs. 2-3")
class Fig3(Curves):
    """FedAvg at four Dirichlet alphas: accuracy, gradient diversity, gradient norm of F."""

    line, name = "alpha", "{alpha}"
    stem, metrics, curves = "fig3", (ACCURACY, DIVERSITY, "global/grad_norm"), (DIVERSITY, "global/grad_norm")
    axes: ClassVar = {"system": hybrid(), "alpha": alphas("partition.alpha", 0.1, 0.3, 0.5, 0.7)}
    options: ClassVar = Scenario.options | {"eval.global": True}

    def claims(self, values: Values) -> list[Claim]:
        """The claims of Sec. 3: less heterogeneity gives higher accuracy and diversity, and a lower |grad F|."""
        claims, show = [], partial(number, digits=3)
        for metric, text, sign in (
            (ACCURACY, "accuracy is higher at alpha 0.7 than at alpha 0.1", 1),
            (DIVERSITY, "with it goes a higher gradient diversity (fig. 3)", 1),
            ("global/grad_norm", "with it goes a lower |grad F| (fig. 3)", -1),
        ):
            means = {name: of[metric].mean for name, of in values[""].items()}
            low, *_, high = means.values()
            claims.append(Claim(text, sign * (high - low) > 0, listing(means, percent if metric == ACCURACY else show)))
        return claims


class Methods(Tuned, Curves):
    """A figure of the methods of table 1 in one system, each at its best tuning; claims need the runs of all."""

    metrics: ClassVar[Sequence[str]] = ("train/loss", ACCURACY, DIVERSITY)
    curves: ClassVar[Sequence[str]] = ("train/loss", DIVERSITY)
    axes: ClassVar[dict[str, Axis]] = {"system": hybrid(), "method": {name: {} for name in METHODS}}
    looks: ClassVar[Mapping[str, str]] = LOOKS

    def lines(self, cache: RunCache) -> dict[str, dict[str, Group]]:
        return {"": self.tune(cache)["hybrid"]}

    def claims(self, values: Values) -> list[Claim]:
        return self.comparisons(values[""]) if len(values[""]) == len(self.methods) else []

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        """The claims that compare all methods, by means over the last rounds."""
        runs = {name: of["runs"] for name, of in lines.items()}
        seeds, last = len(runs[FORMS[0]].runs), final_rounds(rounds_of(runs[FORMS[0]]))
        diversity = {name: of[DIVERSITY] for name, of in lines.items()}
        claims = [most_diverse({name: diversity[name] for name in against(f, lines)}, f, seeds) for f in FORMS]
        return claims + [steady(runs, form, last) for form in FORMS if ACCURACY in self.metrics]


@EXPERIMENTS.register("fedaware/fig5", paper="FedAWARE [4] fig. 5")
class Fig5(Methods):
    """Gradient diversity over rounds of the methods of table 1, hybrid system, of the runs of table 1."""

    stem, metrics, curves, shares = "fig5", (DIVERSITY,), (DIVERSITY,), "fedaware/table1"

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        ends, tops = ({name: of[key].mean for name, of in lines.items()} for key in (DIVERSITY, "best"))
        holds = all(ends[m] < ends["FedAvg"] and tops[m] > tops["FedAvg"] for m in ("FedAvgM", "FedYogi"))
        shown = {m: f"{percent(tops[m])} % at {number(ends[m], 3)}" for m in ("FedAvg", "FedAvgM", "FedYogi")}
        text = "FedAvgM and FedYogi are more accurate than FedAvg at a lower diversity"
        return [*super().comparisons(lines), Claim(text, holds, listing(shown, str))]


class Digits(Methods):
    """Figures 8 and 9: images of one channel, with pixels in 0..1 as in the paper's code."""

    smoke: ClassVar = {"local.lr": 0.05}
    paper: ClassVar = {"data.init_args.mean": [0.0], "data.init_args.std": [1.0]}

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        claims = super().comparisons(lines)
        for form in FORMS:
            losses = {name: lines[name]["train/loss"].mean for name in (form, "FedYogi")}
            text, holds = "its training loss is at most 1.5 times FedYogi's", losses[form] <= 1.5 * losses["FedYogi"]
            claims.append(Claim(f"{form}: {text}", holds, listing(losses, partial(number, digits=3))))
        return claims


@EXPERIMENTS.register("fedaware/fig8", paper="FedAWARE [4] fig. 8")
class Fig8(Digits):
    """Loss, accuracy and gradient diversity of the methods of table 1 on MNIST."""

    stem = "fig8"
    axes: ClassVar = Methods.axes | {"system": hybrid("data/mnist", "reproduce/fedaware_mlp")}


@EXPERIMENTS.register("fedaware/fig9", paper="FedAWARE [4] fig. 9")
class Fig9(Digits):
    """Loss, accuracy and gradient diversity of the methods of table 1 on FashionMNIST."""

    stem = "fig9"
    axes: ClassVar = Methods.axes | {"system": hybrid("data/fashion_mnist", "reproduce/fedaware_mlp")}


@EXPERIMENTS.register("fedaware/fig6", paper="FedAWARE [4] fig. 6")
class Fig6(Methods):
    """FedAWARE against FedMGDA+ at the best of five server learning rates, on CIFAR-10 in the hybrid system."""

    stem, metrics, curves, smoke_seeds = "fig6", (ACCURACY, DIVERSITY), (DIVERSITY,), 1
    methods: ClassVar = {  # FedMGDA+'s updates have length 1; the paper names no learning rate
        "FedAWARE": tuned("fedaware"),
        "FedMGDA+": tuned("fedmgda", "algorithm.gamma", (0.03, 0.1, 0.3, 1.0, 3.0)),
        "FedAvg": tuned("fedavg"),
    }
    smoke_values = (0.3, 1.0)
    axes: ClassVar = {"system": hybrid(), "method": {name: {} for name in methods}}
    looks: ClassVar = {"FedAWARE": "fedaware", "FedMGDA+": "fedmgda", "FedAvg": "fedavg"}

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        tops = {name: of["best"].mean for name, of in lines.items()}
        return [Claim("FedAWARE is more accurate than FedMGDA+", tops["FedAWARE"] > tops["FedMGDA+"], listing(tops))]


@EXPERIMENTS.register("fedaware/fig7", paper="FedAWARE [4] fig. 7")
class Fig7(Curves):
    """Sensitivity of FedAWARE to its momentum alpha, hybrid+ system."""

    line, name = "alpha", "{alpha}"
    stem, metrics, curves = "fig7", (ACCURACY, DIVERSITY), (DIVERSITY,)
    axes: ClassVar = {
        "system": {"hybrid+": SYSTEMS["hybrid+"]},
        "alpha": alphas("algorithm.alpha", 0.1, 0.3, 0.5, 0.7, 0.9),
    }
    options: ClassVar = Scenario.options | {"algorithm.name": "fedaware"}

    def claims(self, values: Values) -> list[Claim]:
        tops = {name: of["best"].mean for name, of in values[""].items()}
        matters = max(tops.values()) - min(tops.values()) > 0.01
        return [Claim("a proper alpha matters: the best is a point above the worst", matters, listing(tops))]
