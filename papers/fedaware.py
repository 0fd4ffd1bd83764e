"""FedAWARE [4] (Zeng, Xu, Pan, Wang & Tang 2024): table 1, and the settings that the paper's figures share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.report.derived import Stat, best
from raylfl.report.runs import Group
from raylfl.report.statistics import Interval, paired_test
from raylfl.report.tables import Column, ReportTable
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.run_cache import RunCache
from papers.setting import Setting, setting
from papers.texts import ACCURACY, accuracy_text, published

SYSTEMS = {
    "statistical only": "preset/fedaware_statistical",
    "hybrid": "preset/fedaware_hybrid",
    "hybrid+": "preset/fedaware_hybrid_plus",
}
NORMALISED = "FedAWARE, normalised"  # as in the authors' public code; Alg. 1 has the momenta as they are
FORMS = ("FedAWARE", NORMALISED)
# name -> algorithm, tuned option and its grid (App. C.1)
METHODS: dict[str, tuple[str, str | None, Sequence[float]]] = {
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
LOOKS = {name: key for name, (key, _, _) in METHODS.items()} | {NORMALISED: NORMALISED}
TABLE1 = {  # statistical only, hybrid, hybrid+
    "FedAvg": "52.40±0.47 50.47±0.20 46.10±0.19",
    "FedAvgM": "61.22±0.23 58.13±0.97 56.83±0.73",
    "FedProx": "52.38±0.51 50.58±0.58 47.11±0.38",
    "SCAFFOLD": "49.57±0.08 50.61±0.34 31.36±2.80",
    "FedNova": "52.39±0.52 45.39±0.32 40.98±1.50",
    "FedYogi": "61.07±1.51 59.10±0.52 57.64±1.14",
    "FedDyn": "58.88±0.41 56.85±0.28 56.13±0.41",
    **dict.fromkeys(FORMS, "64.54±0.38 61.41±0.20 61.28±0.39"),  # the paper does not say which form
}
SEEDS = (0, 1, 2)  # the paper does not give the number of seeds
SEARCH_SEED = 0


def scenario(
    cache: RunCache, label: str, system: str, more: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> Setting:
    """The setting of FedAvg in a system of heterogeneity, at the cache's scale; other methods change its options.

    system: a key of SYSTEMS; more: names of configs merged on top; options: dotted keys with other values.
    """
    bases = ["reproduce/fedaware_table1", SYSTEMS[system], *more, cache.pick("reproduce/smoke", "reproduce/paper")]
    smoke: dict[str, Any] = {"local.lr": 0.05}  # with 0.01, 100 rounds are too few to learn anything
    if not more:
        smoke["data.init_args.upscale"] = 20  # the smallest images for which the paper's convolutions have an output
    if system != "statistical only":
        smoke["partition.min_size"] = 2  # 1,438 digits over 50 clients
    if system == "hybrid+":
        smoke["local.batch_size"] = {"uniform": [5, None]}
    return setting(label, bases, cache.pick(smoke, {}) | dict(options or {}))


def against(form: str, names: Iterable[str]) -> list[str]:
    """The name `form`, one of FORMS (FedAWARE's two forms), followed by the `names` that are not in FORMS."""
    return [form, *(name for name in names if name not in FORMS)]


def variants(base: Setting, names: Sequence[str], smoke: bool) -> dict[str, list[Setting]]:
    """Method -> its settings, one for every value of the option that is tuned.

    base: the setting to which method and option are added; smoke: use only the middle value of the option's grid.
    """
    out = {}
    for name in names:
        key, option, grid = METHODS[name]
        own = base.with_(f"{base.label}, {name}", {"algorithm.name": key})
        grid = grid[len(grid) // 2 : len(grid) // 2 + 1] if smoke else grid
        out[name] = [own.with_(f"{own.label} {value}", {option: value}) for value in grid if option] or [own]
    return out


def tuned(cache: RunCache, systems: Mapping[str, Setting], names: Sequence[str]) -> dict[str, dict[str, Group]]:
    """System -> method -> the runs of its best setting on all seeds.

    The best setting of `variants` has the highest accuracy on the search seed. systems: name -> base setting; names:
    the methods. If runs of some settings are missing, which only happens in a cache of published runs, the method is
    left out.
    """
    tries = {
        (label, name): {s.label: s for s in settings}
        for label, base in systems.items()
        for name, settings in variants(base, names, cache.scale == "smoke").items()
    }
    chosen: dict[str, dict[str, Setting]] = {label: {} for label in systems}
    for (label, name), groups in cache.table(tries, [SEARCH_SEED]).items():
        if len(groups) == len(tries[label, name]):
            top = max(groups.values(), key=lambda group: best(group, ACCURACY).mean)
            chosen[label][name] = tries[label, name][top.label]
    return cache.table(chosen, cache.pick(SEEDS[:2], SEEDS))


def steady(lines: Mapping[str, Group], form: str, last: int) -> Claim:
    """The claim of Sec. 5 that the accuracy of FedAWARE varies least from evaluation to evaluation.

    It is judged by paired t tests over seeds. lines: method -> runs; form: one of `FORMS`; last: the number of last
    rounds considered.
    """
    moves = {name: jitter(lines[name], last) for name in against(form, lines)}
    order = sorted(moves, key=lambda name: float(np.mean(moves[name])))
    told = ", ".join(f"{name} {100 * np.mean(moves[name]):.2f}" for name in order)
    own, rivals = list(moves[form]), [list(move) for name, move in moves.items() if name != form]
    leads = [paired_test(rival, own).difference for rival in rivals] if len(own) > 1 else []
    return Claim(f"{form}: its accuracy varies least between evaluations", ahead_of_all(leads), told)


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


@EXPERIMENTS.register("fedaware/table1", paper="FedAWARE [4] table 1, fig. 4")
class Table1(PaperResult):
    """Best test accuracy of eight methods, FedAWARE in two forms, on CIFAR-10 in three systems of heterogeneity.

    The systems are label skew alone, label skew with unequal local steps (hybrid), and with local steps that also
    change in every round (hybrid+).
    """

    scales = SCALES

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        systems = {label: scenario(cache, label, label) for label in SYSTEMS}
        found = tuned(cache, systems, list(METHODS))
        theirs = {name: dict(zip(SYSTEMS, map(published, text.split()), strict=True)) for name, text in TABLE1.items()}
        ours = {name: {label: best(found[label][name], ACCURACY) for label in SYSTEMS} for name in METHODS}
        plots = [draw.Plot(label, lines, ACCURACY, band="std", window=5) for label, lines in found.items()]
        looks = draw.styles(LOOKS)
        cells = {label: {name: (ours[name][label], theirs[name][label]) for name in METHODS} for label in SYSTEMS}
        figures = {"fig4": draw.curves(plots, looks), "table1": draw.beside({"": cells}, looks)}
        claims = self.claims(ours)
        for label, lines in found.items():
            for form in FORMS:
                claim = steady(lines, form, cache.pick(20, 50))
                claims.append(Claim(f"{label}: {claim.text}", claim.holds, claim.evidence))
        return Findings([self._table(ours, theirs)], claims, figures)

    @staticmethod
    def _table(ours: Mapping[str, Mapping[str, Stat]], theirs: Mapping[str, Mapping[str, Stat]]) -> ReportTable:
        rows = [
            {"method": name}
            | {f"{label} ours": ours[name][label] for label in SYSTEMS}
            | {f"{label} published": theirs[name][label] for label in SYSTEMS}
            for name in METHODS
        ]
        columns = [Column("method", "method")]
        for label in SYSTEMS:
            columns.append(Column(f"{label} ours", f"{label}: ours", accuracy_text, "max", True))
            columns.append(Column(f"{label} published", "published", accuracy_text, "max", True))
        return ReportTable("table1", "Best test accuracy in %, mean ± std over seeds, best tuning.", columns, rows)

    @staticmethod
    def claims(ours: Mapping[str, Mapping[str, Stat]]) -> list[Claim]:
        """The claims of Sec. 5 about accuracy in the three systems of heterogeneity.

        FedAWARE is best in every system, and every method is less accurate in `hybrid+` than in `statistical only`.
        ours: method -> system -> best accuracy.
        """
        claims = []
        for label in SYSTEMS:
            for form in FORMS:
                order = sorted(against(form, METHODS), key=lambda name: -ours[name][label].mean)
                told = ", ".join(f"{name} {100 * ours[name][label].mean:.1f}" for name in order)
                claims.append(Claim(f"{label}: {form} is best", order[0] == form, told))
        loses = {name: ours[name]["hybrid+"].mean < ours[name]["statistical only"].mean for name in METHODS}
        text = "every method loses accuracy from statistical only to hybrid+"
        return [*claims, Claim(text, all(loses.values()), f"{sum(loses.values())} of {len(loses)} do")]
