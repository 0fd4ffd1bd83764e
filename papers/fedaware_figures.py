"""FedAWARE [4] (Zeng, Xu, Pan, Wang & Tang 2024), figures 3 and 5 to 9: accuracy and gradient diversity over rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from raylfl.errors import BadConfig
from raylfl.report.derived import Stat, best, last_k
from raylfl.report.runs import Group
from raylfl.report.statistics import Level, difference
from raylfl.report.style import Line
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import axis_name, number, stat_text
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.choice import plain
from papers.fedaware import (
    FORMS,
    LOOKS,
    METHODS,
    NORMALISED,
    SEARCH_SEED,
    SEEDS,
    against,
    ahead_of_all,
    scenario,
    steady,
    tuned,
)
from papers.run_cache import RunCache
from papers.texts import ACCURACY, accuracy_text

DIVERSITY = "update/diversity"


class Curves(PaperResult):
    """A figure with one panel per metric and the same lines in every panel.

    stem: its file name. looks: name of a line -> the algorithm in whose style it is drawn; if empty, each line has its
    own style.
    """

    scales = SCALES
    stem: ClassVar[str]
    metrics: ClassVar[Sequence[str]]
    looks: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def measured(self, cache: RunCache) -> dict[str, Group]:
        """Name of a line of the figure -> its runs, in the order of the legend."""

    @abstractmethod
    def claims(self, lines: Mapping[str, Group], cache: RunCache) -> list[Claim]:
        """The claims about the figure, judged by its lines: name -> runs."""

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        lines = self.measured(cache)
        window = cache.pick(5, 10)
        plots = [draw.Plot(_heading(metric), lines, metric, band="std", window=window) for metric in self.metrics]
        figure = draw.curves(plots, _styles(self.looks or {name: name for name in lines}))
        return Findings([self._table(lines, cache)], self.claims(lines, cache), {self.stem: figure})

    def _table(self, lines: Mapping[str, Group], cache: RunCache) -> ReportTable:
        last = cache.pick(20, 50)
        rows = [
            {"line": name, "best": best(group, ACCURACY)}
            | {metric: last_k(group, metric, last) for metric in self.metrics}
            for name, group in lines.items()
        ]
        columns = [Column("line", ""), Column("best", "best accuracy (%)", accuracy_text, "max", True)]
        columns += [
            Column(metric, f"{metric}, last {last}", partial(stat_text, metric=metric), None, True)
            for metric in self.metrics
        ]
        return ReportTable(self.stem, "Mean ± std over seeds and the last rounds.", columns, rows)


def _heading(metric: str) -> str:
    return axis_name(metric).removesuffix(" (%)").capitalize()


def _styles(looks: Mapping[str, str]) -> dict[str, Line]:
    """The styles of the lines; FedAWARE's two forms have one colour, with different dashes and markers."""
    from papers import draw

    own = draw.styles({name: method for name, method in looks.items() if name != NORMALISED})
    if NORMALISED not in looks:
        return own
    form = own[FORMS[0]]
    return {name: own.get(name, Line(form.color, form.dash + 1, form.marker + 1)) for name in looks}


class Alphas(Curves):
    """A figure of one method with a line per value of a parameter alpha.

    key: the config key of alpha; alphas: its values; system: a key of `fedaware.SYSTEMS`; options: dotted keys that all
    lines share.
    """

    key: ClassVar[str]
    alphas: ClassVar[Sequence[float]]
    system: ClassVar[str]
    options: ClassVar[Mapping[str, Any]]

    def measured(self, cache: RunCache) -> dict[str, Group]:
        base = scenario(cache, "", self.system, options=self.options)
        settings = [base.with_(f"alpha {alpha}", {self.key: alpha}) for alpha in self.alphas]
        return {group.label: group for group in cache.groups(settings, cache.pick((0,), SEEDS))}


def diverse(lines: Mapping[str, Group], form: str, last: int) -> Claim:
    """The claim of Sec. 5 that FedAWARE has a higher final gradient diversity than the other methods.

    It is judged by Welch's t intervals of the means. The std is over seeds and rounds, but only the number of seeds
    counts as the number of values, which makes the test cautious. lines: method -> runs; form: one of `FORMS`; last:
    the number of last rounds that are averaged.
    """
    values = {name: last_k(lines[name], DIVERSITY, last) for name in against(form, lines)}
    return most_diverse(values, form, len(lines[form].runs))


def most_diverse(values: Mapping[str, Stat], form: str, seeds: int) -> Claim:
    """The claim of `diverse`; values: method -> gradient diversity, with mean and std; seeds: the number of seeds."""
    order = sorted(values, key=lambda name: -values[name].mean)
    told = ", ".join(f"{name} {stat_text(values[name], DIVERSITY)}" for name in order)
    levels = {name: Level(stat.mean, stat.std, seeds) for name, stat in values.items()}
    leads = [difference(levels[form], level) for name, level in levels.items() if name != form]
    return Claim(f"{form} ends with the highest gradient diversity", ahead_of_all(leads), told)


@EXPERIMENTS.register("fedaware/fig3", paper="FedAWARE [4] figs. 2-3")
class Fig3(Alphas):
    """FedAvg at four Dirichlet alphas: accuracy, gradient diversity, gradient norm of F.

    F: the global objective; alpha: the parameter of the partition, small for a strong label skew.
    """

    stem, metrics = "fig3", (ACCURACY, DIVERSITY, "global/grad_norm")
    key, alphas, system = "partition.alpha", (0.1, 0.3, 0.5, 0.7), "hybrid"
    options: ClassVar = {"eval.global": True}

    def claims(self, lines: Mapping[str, Group], cache: RunCache) -> list[Claim]:
        """The claims of Sec. 3: less heterogeneity gives higher accuracy and gradient diversity and a lower |grad F|.

        lines: Dirichlet alpha -> runs.
        """
        ends = {name: last_k(group, ACCURACY, cache.pick(20, 50)).mean for name, group in lines.items()}
        told = ", ".join(f"{name} {100 * mean:.1f}" for name, mean in ends.items())
        first, *_, last = ends.values()
        claims = [Claim("accuracy is higher at alpha 0.7 than at alpha 0.1", last > first, told)]
        for metric, word, sign in (
            (DIVERSITY, "higher gradient diversity", 1),
            ("global/grad_norm", "lower |grad F|", -1),
        ):
            values = {name: last_k(group, metric, cache.pick(20, 50)).mean for name, group in lines.items()}
            first, *_, last = values.values()
            told = ", ".join(f"{name} {number(value, 3)}" for name, value in values.items())
            claims.append(Claim(f"with it goes a {word} (fig. 3)", sign * (last - first) > 0, told))
        return claims


class Methods(Curves):
    """A figure of the methods of table 1 in one system, each at its best tuning.

    names: the methods; system: a key of `fedaware.SYSTEMS`; more: names of configs merged on top, for other data or
    another model; options: dotted keys with other values at scale `paper`. The claims compare all methods, and are
    judged once all have runs.
    """

    choices = ("method",)
    metrics: ClassVar[Sequence[str]] = ("train/loss", ACCURACY, DIVERSITY)
    names: ClassVar[Sequence[str]] = tuple(METHODS)
    system: ClassVar[str] = "hybrid"
    more: ClassVar[Sequence[str]] = ()
    options: ClassVar[Mapping[str, Any]] = {}

    looks: ClassVar[Mapping[str, str]] = LOOKS

    def measured(self, cache: RunCache) -> dict[str, Group]:
        base = scenario(cache, self.system, self.system, self.more, cache.pick({}, self.options))
        names = [name for name in self.names if cache.only.keeps(method=name)]
        found = tuned(cache, {self.system: base}, names)[self.system]
        if not found:
            raise BadConfig("no method has the runs of all its settings yet; `raylfl reproduce` makes the missing ones")
        return found

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        words = name.rpartition("-s")[0].removeprefix(f"{plain(self.system)}-")
        method = max((known for known in map(plain, self.names) if words.startswith(known)), key=len, default=words)
        return {"method": method, "tuning": words.removeprefix(method).strip("-") or "-"}

    def whole(self) -> int:
        grids = [METHODS[name][2] for name in self.names]
        return sum(max(len(grid), 1) + len(SEEDS) - 1 for grid in grids)  # the best setting has all seeds

    def claims(self, lines: Mapping[str, Group], cache: RunCache) -> list[Claim]:
        return self.comparisons(lines, cache.pick(20, 50)) if len(lines) == len(self.names) else []

    def comparisons(self, lines: Mapping[str, Group], last: int) -> list[Claim]:
        """The claims that compare all methods, by means over this number of last rounds."""
        claims = [diverse(lines, form, last) for form in FORMS]
        return claims + [steady(lines, form, last) for form in FORMS if ACCURACY in self.metrics]


@EXPERIMENTS.register("fedaware/fig5", paper="FedAWARE [4] fig. 5")
class Fig5(Methods):
    """Gradient diversity over rounds of the methods of table 1, hybrid system.

    In this system clients have label skew and unequal numbers of local steps.
    """

    stem, metrics = "fig5", (DIVERSITY,)

    def comparisons(self, lines: Mapping[str, Group], last: int) -> list[Claim]:
        """The claims of `Methods`, and one more: FedAvgM and FedYogi beat FedAvg's accuracy at a lower diversity."""
        ends = {name: last_k(group, DIVERSITY, last).mean for name, group in lines.items()}
        tops = {name: best(group, ACCURACY).mean for name, group in lines.items()}
        low = all(ends[name] < ends["FedAvg"] for name in ("FedAvgM", "FedYogi"))
        high = all(tops[name] > tops["FedAvg"] for name in ("FedAvgM", "FedYogi"))
        names = ("FedAvg", "FedAvgM", "FedYogi")
        told = ", ".join(f"{name} {100 * tops[name]:.1f} % at {number(ends[name], 3)}" for name in names)
        text = "FedAvgM and FedYogi are more accurate than FedAvg at a lower diversity"
        return [*super().comparisons(lines, last), Claim(text, low and high, told)]


class Digits(Methods):
    """The common part of figures 8 and 9: images of one channel, with pixels in 0..1 as in the paper's code.

    Besides accuracy and gradient diversity, both figures show the training loss.
    """

    options: ClassVar[Mapping[str, Any]] = {"data.init_args.mean": [0.0], "data.init_args.std": [1.0]}

    def comparisons(self, lines: Mapping[str, Group], last: int) -> list[Claim]:
        """The claims of `Methods`, and one more: FedAWARE's training loss is comparable with FedYogi's."""
        claims = super().comparisons(lines, last)
        for form in FORMS:
            own, other = (last_k(lines[name], "train/loss", last).mean for name in (form, "FedYogi"))
            told = f"{form} {number(own, 3)}, FedYogi {number(other, 3)}"
            claims.append(Claim(f"{form}: its training loss is at most 1.5 times FedYogi's", own <= 1.5 * other, told))
        return claims


@EXPERIMENTS.register("fedaware/fig8", paper="FedAWARE [4] fig. 8")
class Fig8(Digits):
    """Loss, accuracy and gradient diversity of the methods of table 1 on MNIST."""

    stem, more = "fig8", ("data/mnist", "reproduce/fedaware_mlp")


@EXPERIMENTS.register("fedaware/fig9", paper="FedAWARE [4] fig. 9")
class Fig9(Digits):
    """Loss, accuracy and gradient diversity of the methods of table 1 on FashionMNIST."""

    stem, more = "fig9", ("data/fashion_mnist", "reproduce/fedaware_mlp")


@EXPERIMENTS.register("fedaware/fig6", paper="FedAWARE [4] fig. 6")
class Fig6(Curves):
    """FedAWARE against FedMGDA+ at the best of five server learning rates, on CIFAR-10 in the hybrid system.

    In this system clients have label skew and unequal numbers of local steps.
    """

    stem, metrics = "fig6", (ACCURACY, DIVERSITY)
    looks: ClassVar = {"FedAWARE": "fedaware", "FedMGDA+": "fedmgda", "FedAvg": "fedavg"}
    rates: ClassVar = (0.03, 0.1, 0.3, 1.0, 3.0)  # of FedMGDA+, whose updates have length 1; the paper names none

    def measured(self, cache: RunCache) -> dict[str, Group]:
        base = scenario(cache, "hybrid", "hybrid")
        methods = [base.with_(f"hybrid, {name}", {"algorithm.name": key}) for name, key in self.looks.items()]
        rates = cache.pick((0.3, 1.0), self.rates)
        tries = [methods[1].with_(f"{methods[1].label} {rate}", {"algorithm.gamma": rate}) for rate in rates]
        found = cache.groups(tries, [SEARCH_SEED])
        tops = [best(group, ACCURACY).mean for group in found]
        chosen = tries[max(range(len(tries)), key=lambda k: tops[k])]
        final = cache.groups([methods[0], chosen, methods[2]], cache.pick((0,), SEEDS))
        return dict(zip(self.looks, final, strict=True))

    def claims(self, lines: Mapping[str, Group], cache: RunCache) -> list[Claim]:
        tops = {name: best(group, ACCURACY).mean for name, group in lines.items()}
        told = ", ".join(f"{name} {100 * top:.1f}" for name, top in tops.items())
        return [Claim("FedAWARE is more accurate than FedMGDA+", tops["FedAWARE"] > tops["FedMGDA+"], told)]


@EXPERIMENTS.register("fedaware/fig7", paper="FedAWARE [4] fig. 7")
class Fig7(Alphas):
    """Sensitivity of FedAWARE to its momentum alpha, hybrid+ system.

    In this system clients have label skew and local steps that differ and change in every round.
    """

    stem, metrics = "fig7", (ACCURACY, DIVERSITY)
    key, alphas, system = "algorithm.alpha", (0.1, 0.3, 0.5, 0.7, 0.9), "hybrid+"
    options: ClassVar = {"algorithm.name": "fedaware"}

    def claims(self, lines: Mapping[str, Group], cache: RunCache) -> list[Claim]:
        tops = {name: best(group, ACCURACY).mean for name, group in lines.items()}
        told = ", ".join(f"{name} {100 * top:.1f}" for name, top in tops.items())
        matters = max(tops.values()) - min(tops.values()) > 0.01
        return [Claim("a proper alpha matters: the best is a point above the worst", matters, told)]
