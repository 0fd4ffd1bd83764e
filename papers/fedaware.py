"""FedAWARE [4] (Zeng, Xu, Pan, Wang & Tang 2024): table 1, figures 3 to 9."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim
from papers.choice import plain
from papers.grid import Axis, Grid, Point, nest
from papers.ledger import Row
from papers.lines import Lines, Values
from papers.run_cache import RunCache
from papers.setting import CellConfig
from papers.statistics import Level, difference
from papers.texts import ACCURACY, accuracy_text, stat_of, table_of
from raylfl.core.arrays import Floats
from raylfl.errors import BadConfig
from raylfl.report.derived import Stat, best, final_rounds, last_k
from raylfl.report.runs import Group
from raylfl.report.statistics import Interval, paired_test
from raylfl.report.style import Line
from raylfl.report.tables import Column
from raylfl.report.wording import axis_name, number, stat_text

SYSTEMS = {
    "statistical only": "preset/fedaware_statistical",
    "hybrid": "preset/fedaware_hybrid",
    "hybrid+": "preset/fedaware_hybrid_plus",
}
NORMALISED = "FedAWARE, normalised"  # as in the authors' public code; Alg. 1 has the momenta as they are
FORMS = ("FedAWARE", NORMALISED)
Tuning = Mapping[str, tuple[str, str | None, Sequence[Any]]]  # name -> algorithm, tuned option and its grid
METHODS: Tuning = {  # App. C.1
    "FedAvg": ("fedavg", None, ()),
    "FedAvgM": ("fedavgm", "algorithm.beta", (0.7, 0.9, 0.97, 0.997)),
    "FedProx": ("fedprox", "algorithm.mu", (0.01, 0.1, 1.0, 10.0)),
    "SCAFFOLD": ("scaffold", None, ()),
    "FedNova": ("fednova", None, ()),
    "FedYogi": ("fedyogi", "algorithm.gamma", tuple(round(10 ** (e / 2), 6) for e in range(-6, 3))),
    "FedDyn": ("feddyn", "algorithm.alpha", (0.1, 0.01, 0.001)),
    "FedAWARE": ("fedaware", None, ()),
    NORMALISED: ("fedaware", "algorithm.normalize", (True,)),
}
DIVERSITY = "global/diversity"  # Def. 3.1, of all clients' gradients


def systems(*names: str, files: Sequence[str] = ()) -> Axis:
    """An axis of systems of heterogeneity, with further config files."""
    return {name: {"base": [SYSTEMS[name], *files]} for name in names}


class Scenario(Grid):
    """The base of all experiments: CIFAR-10, the axis `system` of heterogeneity, and smaller clients at `smoke`."""

    base, seeds = ("reproduce/fedaware_table1",), (0, 1, 2)  # the paper does not give the number of seeds
    options: ClassVar[dict[str, Any]] = {"eval.diversity": True}
    # with lr 0.01, 100 rounds are too few to learn; 20: the smallest images for which the convolutions have an output
    smoke: ClassVar[dict[str, Any]] = {"local.lr": 0.05, "data.init_args.upscale": 20}

    def setting(self, point: Point, scale: str) -> CellConfig:
        made, smoke = super().setting(point, scale), dict[str, Any]()
        if scale == "smoke" and point.system != "statistical only":
            smoke["partition.min_size"] = 2  # 1,438 digits over 50 clients
        if scale == "smoke" and point.system == "hybrid+":
            smoke["local.batch_size"] = {"uniform": [5, None]}
        return made.with_(made.label, smoke)


class Tuned(Scenario):
    """Methods at the best value of a tuned option, by the best accuracy on the first seed.

    methods: as METHODS; at scale `smoke` only the middle value of each grid, or `smoke_values`, are tried.
    """

    tuned, smoke_seeds = "tuning", 2
    choices: ClassVar[tuple[str, ...]] = ("method",)
    methods: ClassVar[Tuning] = METHODS
    smoke_values: ClassVar[Sequence[Any]] = ()

    def points(self, scale: str) -> list[Point]:
        points = []
        for point in super().points(scale):
            grid = self.methods[point.method][2] or (None,)
            if scale == "smoke" and len(grid) > 1:
                grid = self.smoke_values or grid[len(grid) // 2 : len(grid) // 2 + 1]
            points += [point.but(tuning=value) for value in grid]
        return points

    def label(self, point: Point) -> str:
        value = point.get("tuning")
        return f"{point.system}, {point.method}" + ("" if value is None else f" {value}")

    def cell(self, point: Point) -> dict[str, Any]:
        system = {"system": plain(point.system)} if len(self.axes["system"]) > 1 else {}
        value = point.get("tuning")
        return {**system, "method": plain(point.method), "tuning": "-" if value is None else plain(str(value))}

    def setting(self, point: Point, scale: str) -> CellConfig:
        made, option = super().setting(point, scale), self.methods[point.method][1]
        return made.with_(made.label, {option: point.tuning}) if option else made

    def tune(self, cache: RunCache) -> dict[str, dict[str, Group]]:
        """System -> method -> the runs of its best setting on all seeds."""
        return nest(self.best(cache, lambda group: best(group, ACCURACY).mean), "system", "method")


def axis_of(methods: Tuning) -> Axis:
    return {name: {"algorithm.name": key} for name, (key, _, _) in methods.items()}


LOOKS = {name: key for name, (key, _, _) in METHODS.items()} | {NORMALISED: NORMALISED}


def against(form: str, names: Iterable[str]) -> list[str]:
    """The name `form`, one of FORMS (FedAWARE's two forms), followed by the `names` that are not in FORMS."""
    return [form, *(name for name in names if name not in FORMS)]


def steady(lines: Mapping[str, Group], form: str, last: int) -> Claim:
    """The claim of Sec. 5 that the accuracy of FedAWARE varies least from evaluation to evaluation.

    It is judged by paired t tests over seeds. lines: method -> runs; form: one of `FORMS`; last: the number of last
    rounds considered.
    """
    moves = {name: jitter(lines[name], last) for name in against(form, lines)}
    order = sorted(moves, key=lambda name: float(np.mean(moves[name])))
    evidence = ", ".join(f"{name} {100 * np.mean(moves[name]):.2f}" for name in order)
    own_moves, rivals = list(moves[form]), [list(move) for name, move in moves.items() if name != form]
    leads = [paired_test(rival, own_moves).difference for rival in rivals] if len(own_moves) > 1 else []
    return Claim(f"{form}: its accuracy varies least between evaluations", ahead_of_all(leads), evidence)


def ahead_of_all(leads: Sequence[Interval]) -> bool | None:
    """Whether a method is ahead of all rivals, by the confidence intervals of its lead over each rival, `leads`.

    True if all intervals are above 0; False if one interval is below 0; otherwise, or without leads, None (open).
    """
    if any(lead.high < 0 for lead in leads):
        return False
    return True if leads and all(lead.low > 0 for lead in leads) else None


def jitter(group: Group, last: int) -> Floats:
    """The std of the changes of accuracy between evaluations in the `last` rounds, for each of S runs [S]."""
    rows = [run.column(ACCURACY)[run.rounds > run.rounds[-1] - last] for run in group.runs]
    return np.array([np.diff(row[np.isfinite(row)]).std() for row in rows])


def most_diverse(values: Mapping[str, Stat], form: str, seeds: int) -> Claim:
    """The claim of Sec. 5 that FedAWARE has a higher final gradient diversity than the other methods.

    It is judged by Welch's t intervals of the means. The std is over seeds and rounds, but only the number of seeds
    counts as the number of values, which makes the test cautious. values: method -> gradient diversity over the last
    rounds; form: one of `FORMS`; seeds: their number.
    """
    order = sorted(values, key=lambda name: -values[name].mean)
    evidence = ", ".join(f"{name} {stat_text(values[name], DIVERSITY)}" for name in order)
    levels = {name: Level(stat.mean, stat.std, seeds) for name, stat in values.items()}
    leads = [difference(levels[form], level) for name, level in levels.items() if name != form]
    return Claim(f"{form} ends with the highest gradient diversity", ahead_of_all(leads), evidence)


def published_best(method: str, system: str) -> Stat:
    """The accuracy of a method in table 1; the paper does not say which form of FedAWARE has its numbers."""
    rows = {row["method"]: row for row in table_of("fedaware_table1")}
    return stat_of(rows["FedAWARE" if method in FORMS else method][system])


@EXPERIMENTS.register("fedaware/table1", paper="FedAWARE [4] table 1, fig. 4")
class Table1(Tuned, Lines):
    """Best test accuracy of eight methods, FedAWARE in two forms, on CIFAR-10 in three systems of heterogeneity.

    The systems are label skew alone, label skew with unequal local steps (hybrid), and with local steps that also
    change in every round (hybrid+).
    """

    choices, curves = (), ("train/loss", DIVERSITY)  # figure 5 shares the runs
    axes: ClassVar = {"system": systems(*SYSTEMS), "method": axis_of(METHODS)}
    panel, metrics, stem, looks = "system", (ACCURACY, "train/loss"), "table1", LOOKS
    columns = (
        Column("ours", "best accuracy (%): ours", accuracy_text, "max", True),
        Column("published", "published", accuracy_text, "max", True),
    )

    def headline(self, row: Row) -> tuple[str, float | None, float | None]:
        """The best accuracy."""
        (method,) = (name for name in METHODS if plain(name) == row.cell["method"])
        (system,) = (label for label in SYSTEMS if plain(label) == row.cell["system"])
        top = None if row.diverged else max((value for _, value in row.curve), default=None)
        return f"best {row.metric}", top, published_best(method, system).mean

    def lines(self, cache: RunCache) -> dict[str, dict[str, Group]]:
        return self.tune(cache)

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        return {"ours": best(group, ACCURACY), "published": published_best(line, panel), "runs": group}

    def plot(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"band": "std", "window": 5}

    def caption(self, values: Values) -> str:
        return "Best test accuracy, mean ± std over seeds, best tuning."

    def claims(self, values: Values) -> list[Claim]:
        """The claims of Sec. 5 about accuracy in the three systems of heterogeneity.

        FedAWARE is best in every system, its accuracy varies least between evaluations, and every method is less
        accurate in `hybrid+` than in `statistical only`.
        """
        claims, steadiest = [], []
        for label, lines in values.items():
            runs = {name: of["runs"] for name, of in lines.items()}
            for form in FORMS:
                order = sorted(against(form, METHODS), key=lambda name: -lines[name]["ours"].mean)
                evidence, theirs = (
                    ", ".join(f"{name} {100 * lines[name][key].mean:.1f}" for name in order)
                    for key in ("ours", "published")
                )
                claims.append(Claim(f"{label}: {form} is best", order[0] == form, evidence, published=theirs))
                claim = steady(runs, form, final_rounds(rounds_of(runs[form])))
                steadiest.append(replace(claim, text=f"{label}: {claim.text}"))
        ends = {
            name: [values[label][name]["ours"].mean for label in ("statistical only", "hybrid+")] for name in METHODS
        }
        loses = [less < more for more, less in ends.values()]
        text = "every method loses accuracy from statistical only to hybrid+"
        return [*claims, Claim(text, all(loses), f"{sum(loses)} of {len(loses)} do"), *steadiest]


class Curves(Lines, Scenario):
    """A figure with one panel per metric and the same lines in every panel; means are over the last rounds."""

    @property
    def columns(self) -> list[Column]:  # type: ignore[override]
        means = [Column(m, f"{m}, last rounds", partial(stat_text, metric=m), None, True) for m in self.metrics]
        return [Column("best", "best accuracy (%)", accuracy_text, "max", True), *means]

    def title(self, panel: str, metric: str) -> str:
        return axis_name(metric).removesuffix(" (%)").capitalize()

    def styles(self, looks: Mapping[str, str]) -> dict[str, Line]:
        """FedAWARE's two forms have one colour, with different dashes and markers."""
        styles = super().styles({name: method for name, method in looks.items() if name != NORMALISED})
        if NORMALISED not in looks:
            return styles
        form = styles[FORMS[0]]
        return {name: styles.get(name, Line(form.color, form.dash + 1, form.marker + 1)) for name in looks}

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        means = {metric: last_k(group, metric, final_rounds(rounds_of(group))) for metric in self.metrics}
        return {"best": best(group, ACCURACY), "runs": group, **means}

    def plot(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"band": "std", "window": max(1, rounds_of(next(iter(lines.values()))["runs"]) // 50)}

    def caption(self, values: Values) -> str:
        return "Mean ± std over seeds, and the last tenth of the rounds."


def rounds_of(group: Group) -> int:
    return int(group.runs[0].config["rounds"])


class Alphas(Curves):
    """A figure of one method with a line per value of a parameter alpha."""

    line = "alpha"

    def label(self, point: Point) -> str:
        return str(point.alpha)


@EXPERIMENTS.register("fedaware/fig3", paper="FedAWARE [4] figs. 2-3")
class Fig3(Alphas):
    """FedAvg at four Dirichlet alphas: accuracy, gradient diversity, gradient norm of F.

    F: the global objective; alpha: the parameter of the partition, small for a strong label skew.
    """

    stem, metrics, curves = "fig3", (ACCURACY, DIVERSITY, "global/grad_norm"), (DIVERSITY, "global/grad_norm")
    axes: ClassVar = {
        "system": systems("hybrid"),
        "alpha": {f"alpha {alpha}": {"partition.alpha": alpha} for alpha in (0.1, 0.3, 0.5, 0.7)},
    }
    options: ClassVar = Scenario.options | {"eval.global": True}

    def claims(self, values: Values) -> list[Claim]:
        """The claims of Sec. 3: less heterogeneity gives higher accuracy and diversity, and a lower |grad F|."""
        claims = []
        for metric, text, sign in (
            (ACCURACY, "accuracy is higher at alpha 0.7 than at alpha 0.1", 1),
            (DIVERSITY, "with it goes a higher gradient diversity (fig. 3)", 1),
            ("global/grad_norm", "with it goes a lower |grad F| (fig. 3)", -1),
        ):
            means = {name: of[metric].mean for name, of in values[""].items()}
            low, *_, high = means.values()
            shown = {n: f"{100 * v:.1f}" if metric == ACCURACY else number(v, 3) for n, v in means.items()}
            evidence = ", ".join(f"{name} {value}" for name, value in shown.items())
            claims.append(Claim(text, sign * (high - low) > 0, evidence))
        return claims


class Methods(Tuned, Curves):
    """A figure of the methods of table 1 in one system, each at its best tuning.

    The claims compare all methods, and are judged once all have runs.
    """

    metrics: ClassVar[Sequence[str]] = ("train/loss", ACCURACY, DIVERSITY)
    curves: ClassVar[Sequence[str]] = ("train/loss", DIVERSITY)
    axes: ClassVar[dict[str, Axis]] = {"system": systems("hybrid"), "method": axis_of(METHODS)}
    looks: ClassVar[Mapping[str, str]] = LOOKS

    def lines(self, cache: RunCache) -> dict[str, dict[str, Group]]:
        groups = self.tune(cache)
        if not groups:
            raise BadConfig("no method has the runs of all its settings yet; `raylfl reproduce` makes the missing ones")
        return {"": groups["hybrid"]}

    def claims(self, values: Values) -> list[Claim]:
        return self.comparisons(values[""]) if len(values[""]) == len(self.methods) else []

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        """The claims that compare all methods, by means over the last rounds; lines: method -> key -> value."""
        runs = {name: of["runs"] for name, of in lines.items()}
        seeds, last = len(runs[FORMS[0]].runs), final_rounds(rounds_of(runs[FORMS[0]]))
        diversity = {name: of[DIVERSITY] for name, of in lines.items()}
        claims = [most_diverse({name: diversity[name] for name in against(f, lines)}, f, seeds) for f in FORMS]
        return claims + [steady(runs, form, last) for form in FORMS if ACCURACY in self.metrics]


@EXPERIMENTS.register("fedaware/fig5", paper="FedAWARE [4] fig. 5")
class Fig5(Methods):
    """Gradient diversity over rounds of the methods of table 1, hybrid system, of the runs of table 1.

    In this system clients have label skew and unequal numbers of local steps.
    """

    stem, metrics, curves, shares = "fig5", (DIVERSITY,), (DIVERSITY,), "fedaware/table1"

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        """The claims of `Methods`, and one more: FedAvgM and FedYogi beat FedAvg's accuracy at a lower diversity."""
        ends, tops = ({name: of[key].mean for name, of in lines.items()} for key in (DIVERSITY, "best"))
        low = all(ends[name] < ends["FedAvg"] for name in ("FedAvgM", "FedYogi"))
        high = all(tops[name] > tops["FedAvg"] for name in ("FedAvgM", "FedYogi"))
        names = ("FedAvg", "FedAvgM", "FedYogi")
        evidence = ", ".join(f"{name} {100 * tops[name]:.1f} % at {number(ends[name], 3)}" for name in names)
        text = "FedAvgM and FedYogi are more accurate than FedAvg at a lower diversity"
        return [*super().comparisons(lines), Claim(text, low and high, evidence)]


class Digits(Methods):
    """The common part of figures 8 and 9: images of one channel, with pixels in 0..1 as in the paper's code.

    Besides accuracy and gradient diversity, both figures show the training loss.
    """

    smoke: ClassVar = {"local.lr": 0.05}
    paper: ClassVar = {"data.init_args.mean": [0.0], "data.init_args.std": [1.0]}

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        """The claims of `Methods`, and one more: FedAWARE's training loss is comparable with FedYogi's."""
        claims = super().comparisons(lines)
        for form in FORMS:
            loss, other = (lines[name]["train/loss"].mean for name in (form, "FedYogi"))
            evidence = f"{form} {number(loss, 3)}, FedYogi {number(other, 3)}"
            claims.append(
                Claim(f"{form}: its training loss is at most 1.5 times FedYogi's", loss <= 1.5 * other, evidence)
            )
        return claims


@EXPERIMENTS.register("fedaware/fig8", paper="FedAWARE [4] fig. 8")
class Fig8(Digits):
    """Loss, accuracy and gradient diversity of the methods of table 1 on MNIST."""

    stem = "fig8"
    axes: ClassVar = Methods.axes | {"system": systems("hybrid", files=["data/mnist", "reproduce/fedaware_mlp"])}


@EXPERIMENTS.register("fedaware/fig9", paper="FedAWARE [4] fig. 9")
class Fig9(Digits):
    """Loss, accuracy and gradient diversity of the methods of table 1 on FashionMNIST."""

    stem = "fig9"
    axes: ClassVar = Methods.axes | {
        "system": systems("hybrid", files=["data/fashion_mnist", "reproduce/fedaware_mlp"])
    }


RIVAL: Tuning = {  # FedMGDA+'s updates have length 1; the paper names no learning rate
    "FedAWARE": ("fedaware", None, ()),
    "FedMGDA+": ("fedmgda", "algorithm.gamma", (0.03, 0.1, 0.3, 1.0, 3.0)),
    "FedAvg": ("fedavg", None, ()),
}


@EXPERIMENTS.register("fedaware/fig6", paper="FedAWARE [4] fig. 6")
class Fig6(Methods):
    """FedAWARE against FedMGDA+ at the best of five server learning rates, on CIFAR-10 in the hybrid system.

    In this system clients have label skew and unequal numbers of local steps.
    """

    stem, metrics, curves, smoke_seeds = "fig6", (ACCURACY, DIVERSITY), (DIVERSITY,), 1
    methods, smoke_values = RIVAL, (0.3, 1.0)
    axes: ClassVar = {"system": systems("hybrid"), "method": axis_of(RIVAL)}
    looks: ClassVar = {"FedAWARE": "fedaware", "FedMGDA+": "fedmgda", "FedAvg": "fedavg"}

    def comparisons(self, lines: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        tops = {name: of["best"].mean for name, of in lines.items()}
        evidence = ", ".join(f"{name} {100 * top:.1f}" for name, top in tops.items())
        return [Claim("FedAWARE is more accurate than FedMGDA+", tops["FedAWARE"] > tops["FedMGDA+"], evidence)]


@EXPERIMENTS.register("fedaware/fig7", paper="FedAWARE [4] fig. 7")
class Fig7(Alphas):
    """Sensitivity of FedAWARE to its momentum alpha, hybrid+ system.

    In this system clients have label skew and local steps that differ and change in every round.
    """

    stem, metrics, curves = "fig7", (ACCURACY, DIVERSITY), (DIVERSITY,)
    axes: ClassVar = {
        "system": systems("hybrid+"),
        "alpha": {f"alpha {alpha}": {"algorithm.alpha": alpha} for alpha in (0.1, 0.3, 0.5, 0.7, 0.9)},
    }
    options: ClassVar = Scenario.options | {"algorithm.name": "fedaware"}

    def claims(self, values: Values) -> list[Claim]:
        tops = {name: of["best"].mean for name, of in values[""].items()}
        evidence = ", ".join(f"{name} {100 * top:.1f}" for name, top in tops.items())
        matters = max(tops.values()) - min(tops.values()) > 0.01
        return [Claim("a proper alpha matters: the best is a point above the worst", matters, evidence)]
