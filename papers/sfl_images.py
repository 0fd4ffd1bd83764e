"""SFL [2] (Li & Lyu, NeurIPS 2023), image classification: tables 3 and 7 to 11, figures 2, 3 and 9 to 15.

PFL is the paper's name for parallel federated learning, that is FedAvg. C: classes per client; K: local steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim, Findings
from papers.choice import plain
from papers.grid import Grid, Point, by, by_cell, join_names, nest
from papers.ledger import Row, unchecked_row
from papers.ledger_rows import LedgerRows
from papers.run_cache import RunCache
from papers.setting import CellConfig, setting
from papers.sfl_cells import (
    CLIENTS,
    CLIP,
    CLOSE,
    GRID,
    LONG,
    METHODS,
    NORMS,
    OPTIONS,
    SEARCH_SEED,
    SHORT,
    SMOKE_GRID,
    SMOKE_MODEL,
    TASKS,
    VARIANTS,
    VGG,
    Sweep,
    best_rate,
    norm,
    published_best,
    published_rates,
    row_name,
)
from papers.sfl_judged import best_findings, rate_findings
from papers.texts import ACCURACY, accuracy_text, stat_of, table_of
from raylfl.report.derived import Stat, last_k, score
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import metric_name, stat_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Setup = tuple[str, int, int]  # task, C, K


class Images(Grid):
    """Cells of task, C, K, method and max norm, at the learning rates of a grid, in one or two stages of rounds.

    Pairs (smoke, paper): tasks, names of data and model; steps, K; rates, the grids; stages, (rounds, number of last
    rounds averaged) of each stage. norms: the max norms of both methods. measured: dotted keys of the last stage.
    """

    shares, tuned, seeds, smoke_seeds = "sfl/images", "lr", (SEARCH_SEED, 0, 1), 2
    tasks: ClassVar[tuple[Sequence[str], Sequence[str]]] = ((VGG,), (VGG,))
    steps: ClassVar[tuple[Sequence[int], Sequence[int]]] = ((5,), (5, 20, 50))
    rates: ClassVar[tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]]] = (SMOKE_GRID, GRID)
    stages: ClassVar[tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]] = (((100, 20),), (SHORT,))
    norms: ClassVar[Sequence[Mapping[str, int | None]]] = (CLIP,)
    measured: ClassVar[Mapping[str, Any]] = {}
    stem: ClassVar[str]

    def points(self, scale: str) -> list[Point]:
        full = scale == "paper"
        return [
            Point(task=task, classes=c, steps=k, method=method, clip=norms[method], lr=lr, rounds=rounds)
            for rounds, _ in self.stages[full]
            for task in self.tasks[full]
            for c in (1, 2)
            for k in self.steps[full]
            for norms in self.norms
            for method in METHODS
            for lr in self.rates[full][method]
        ]

    def label(self, point: Point) -> str:
        clients = ", clients" if "clients" in point else ""
        return f"{point.task}, {row_name(point)}, {point.method}, lr {point.lr}, clip {point.clip}{clients}"

    def cell(self, point: Point) -> dict[str, Any]:
        keys = ["task", "classes", "steps", "method", "lr", "clip", *(["rounds"] if len(self.stages[1]) > 1 else [])]
        keys += ["clients"] if "clients" in point else []
        return {key: point[key] for key in keys} | {"clip": None if point.clip is None else float(point.clip)}

    def setting(self, point: Point, scale: str) -> CellConfig:
        data, model = TASKS[point.task]
        options = {
            "partition.classes": point.classes,
            "local.steps": point.steps,
            "local.lr": point.lr,
            "local.clip_norm": point.clip,
            "algorithm.name": METHODS[point.method],
            "rounds": point.rounds,
            **OPTIONS.get(point.task, {}),
        }
        if scale == "smoke":
            options |= {"partition.min_size": 2} | SMOKE_MODEL[VARIANTS.get(point.task, point.task).split(", ")[1]]
        elif point.task.startswith("CINIC"):
            options["num_clients"] = 1000
        if point.rounds == self.stages[scale == "paper"][-1][0]:
            options |= self.measured
        if "clients" in point:
            options |= CLIENTS
        files = ["reproduce/sfl_images", f"data/{data}", f"model/{model}", f"reproduce/{scale}"]
        return replace(setting(self.label(point), files, options), cell=self.cell(point))

    def chosen(self, cache: RunCache) -> dict[Point, list[float]]:
        """Cell -> the learning rates of its grid that `--only` selects."""
        first = self.stages[cache.scale == "paper"][0][0]
        points = [
            p for p in self.points(cache.scale) if p.rounds == first and "clients" not in p and cache.only.keeps(**p)
        ]
        return {cell: list(rates) for cell, rates in by({p.without("rounds"): p for p in points}, "lr").items()}

    def stage(
        self,
        cache: RunCache,
        rates: Mapping[Point, Sequence[float]],
        rounds: int,
        seeds: Sequence[int] = (SEARCH_SEED,),
    ) -> dict[Point, dict[float, Group]]:
        """Cell -> learning rate -> runs of this many rounds, for the given learning rates of each cell."""
        points = [cell.but(lr=lr, rounds=rounds) for cell, tried in rates.items() for lr in tried]
        groups = self.groups(cache, points, seeds)
        return by({point.without("rounds"): group for point, group in groups.items()}, "lr")

    def search(self, cache: RunCache, left: Mapping[Point, Sequence[float]]) -> dict[Point, float]:
        """The best learning rate of each cell, by the mean accuracy over the last rounds on one seed (SFL, App. G.3).

        left: the learning rates tried for each cell. After every stage except the last, all rates within CLOSE of the
        best remain. Cells without the runs of all these rates are left out.
        """
        stages = self.stages[cache.scale == "paper"]
        rates = dict(left)
        for rounds, last in stages:
            tried = {cell: values for cell, values in rates.items() if len(values) > 1}
            if not tried:
                break
            groups = self.stage(cache, tried, rounds)
            for cell, values in tried.items():
                if len(groups.get(cell, {})) < len(values):
                    del rates[cell]
                else:
                    rates[cell] = close(groups[cell], last, 0.0 if (rounds, last) == stages[-1] else CLOSE)
        return {cell: values[0] for cell, values in rates.items()}


def close(groups: Mapping[float, Group], last: int, margin: float) -> list[float]:
    """The learning rates whose mean accuracy over the last rounds is within a margin of the best one's."""
    scores = {lr: score(group, ACCURACY, last) for lr, group in groups.items()}
    return [lr for lr, value in scores.items() if value >= max(scores.values()) - margin]


class Accuracies(Images):
    """A table of PFL (parallel: FedAvg) and SFL at their best learning rates: means over seeds and last rounds.

    stated: the paper's statements: text, its settings (task, C, K), and whether SFL's leads there agree with it.
    """

    stated: ClassVar[Sequence[tuple[str, Callable[[str, int, int], bool], Callable[[Mapping[Setup, float]], bool]]]]
    choices = ("task", "classes", "steps", "method", "lr", "seed")

    def points(self, scale: str) -> list[Point]:
        """In the order of the paper's rows; the networks as printed come last."""
        tasks = [*(task for task in self.tasks[1] if task not in VARIANTS), *VARIANTS]
        return sorted(super().points(scale), key=lambda point: (tasks.index(point.task), point.method))

    def run(self, cache: RunCache) -> Findings:
        rounds, last = self.stages[cache.scale == "paper"][-1]
        rates = self.chosen(cache)
        best = self.search(cache, rates)
        runs = self.stage(cache, {cell: [lr] for cell, lr in best.items()}, rounds, self.of_scale(cache))
        rows = [
            unchecked_row(run, self.cell(cell.but(lr=best[cell], rounds=rounds)))
            for cell in sorted(runs, key=lambda cell: (cell.task, cell.classes, cell.steps, cell.method))
            for run in runs[cell][best[cell]].runs
        ]
        folder = cache.folder if isinstance(cache, LedgerRows) else None
        complete = [cell for cell in runs if len(rates[cell]) == len(self.rates[cache.scale == "paper"][cell.method])]
        ends = {cell: last_k(runs[cell][best[cell]], ACCURACY, last) for cell in complete}
        findings = best_findings(self.stem, folder, rows, published_best(), last, self.claims(ends))
        return (
            findings
            if len(complete) == len(runs) and cache.scale == "paper"
            else replace(findings, claims=self.claims(ends))
        )

    def claims(self, ends: Mapping[Point, Stat]) -> list[Claim]:
        """The paper's statements, and its marks: the method ahead by more than 1 point (MNIST, FMNIST) or 2 points.

        ends: cell -> our accuracy at its best learning rate. The networks as printed are not in the paper's table.
        """
        stats = {(cell.task, cell.classes, cell.steps, cell.method): stat for cell, stat in ends.items()}
        published_leads = leads({key: stat for key, stat in published_best().items() if key[0] in self.tasks[1]})
        measured = {setup: lead for setup, lead in leads(stats).items() if setup in published_leads}
        own_marks, marks = (
            {key: mark(key, lead) for key, lead in both.items()} for both in (measured, published_leads)
        )
        other = [
            f"{_place(key)} {own_marks[key]}, published {marks[key]}"
            for key in published_leads
            if own_marks.get(key, marks[key]) != marks[key]
        ]
        text = "the method ahead by more than 1 point (MNIST, FMNIST) or 2 points (CIFAR-10, CINIC-10) is the paper's"
        evidence = f"in {len(measured) - len(other)} of {len(measured)} settings; {'; '.join(other)}".rstrip("; ")
        claims = [Claim(text, _decide(not other, measured, published_leads), evidence)] if measured else []
        for text, chosen, holds in self.stated:
            keys = [key for key in published_leads if chosen(*key)]
            available = {key: measured[key] for key in keys if key in measured}
            if available:
                evidence = ", ".join(f"{_place(key)} {lead:+.2f}" for key, lead in available.items())
                verdict = _decide(holds(available), available, keys)
                claims.append(Claim(text, verdict, f"SFL - PFL in points: {evidence}"))
        return claims

    def missing(self, rows: Sequence[Row]) -> list[str]:
        return missing(self, rows)


def leads(ends: Mapping[tuple[str, int, int, str], Stat]) -> dict[Setup, float]:
    """(task, C, K) -> the lead of SFL over PFL in points, where both are known."""
    pairs = {key[:3]: (ends.get((*key[:3], "SFL")), ends.get((*key[:3], "PFL"))) for key in ends}
    return {key: 100 * (sfl.mean - pfl.mean) for key, (sfl, pfl) in pairs.items() if sfl and pfl}


def margin(task: str) -> float:
    """The lead in points with which the captions of tables 3 and 11 mark a method."""
    return 1.0 if "MNIST" in task else 2.0


def mark(setup: Setup, lead: float) -> str:
    """The method that is marked in the paper's table with this lead of SFL, or `none`."""
    return "none" if abs(lead) <= margin(setup[0]) else "SFL" if lead > 0 else "PFL"


def falls(leads_of: Mapping[Setup, float]) -> bool:
    """Whether SFL is behind at the most local steps, and its lead falls with them, in each task."""
    tasks = {
        task: [lead for (values, _, _), lead in sorted(leads_of.items()) if values == task] for task, _, _ in leads_of
    }
    return all(values[-1] < 0 and values[-1] < values[0] for values in tasks.values() if len(values) > 1)


def _place(setup: Setup) -> str:
    task, c, k = setup
    return f"{task}, C={c}, K={k}"


def _decide(holds: bool, available: Sized, keys: Sized) -> bool | None:
    """The verdict on a statement about the settings `keys`: open if it holds so far in those that are known."""
    return holds and (True if len(available) == len(keys) else None)


def missing(grid: Images, rows: Sequence[Row]) -> list[str]:
    """What the ledger's rows lack: cells without a run, incomplete searches, and cells with one seed."""
    keys = ("task", "classes", "steps", "method")
    seeds, rates = by_cell(rows, *keys), by_cell(rows, *keys, "lr")
    tried = {cell_key: sum(rate[:-1] == cell_key for rate in rates) for cell_key in seeds}
    parts: dict[str, dict[str, list[str]]] = {}
    for cell in dict.fromkeys(point.without("lr", "rounds") for point in grid.points("paper")):
        cell_key = tuple(plain(cell[key]) for key in keys)
        if cell_key not in seeds:
            state = "no run of"
        elif tried[cell_key] < len(GRID[cell.method]):
            state = "not all learning rates of"
        elif len(seeds[cell_key]) == 1:
            state = "one seed of"
        else:
            continue
        parts.setdefault(state, {}).setdefault(cell.task, []).append(f"{row_name(cell)} {cell.method}")
    return [
        f"{state} {'; '.join(f'{task}: {join_names(names)}' for task, names in cells.items())}"
        for state, cells in parts.items()
    ]


@EXPERIMENTS.register("sfl/table3", paper="SFL [2] table 3")
class Table3(Accuracies):
    """PFL (parallel: FedAvg) and SFL with VGG-9 and ResNet-18 on CIFAR-10 and CINIC-10."""

    stem, stages, measured = "table3", (((100, 20),), (SHORT, LONG)), CLIENTS  # figures 14 and 15 share the long runs
    stated = (
        ("C=1: SFL is better in all settings", lambda task, c, k: c == 1, lambda leads: min(leads.values()) > 0),
        (
            "CINIC-10: SFL is better in all settings, by more than 2 points",
            lambda task, c, k: "CINIC" in task,
            lambda leads: min(leads.values()) > 2,
        ),
        (
            "CIFAR-10, C=2: PFL is close or better in some settings (less than 2 points behind)",
            lambda task, c, k: "CIFAR" in task and c == 2,
            lambda leads: min(leads.values()) < 2,
        ),
    )
    tasks: ClassVar = ((VGG, "CIFAR-10, ResNet-18"), tuple(task for task in TASKS if "MNIST" not in task))


@EXPERIMENTS.register("sfl/table11", paper="SFL [2] table 11")
class Table11(Accuracies):
    """PFL (parallel: FedAvg) and SFL with logistic regression, MLP, LeNet-5 and a CNN on MNIST and FashionMNIST."""

    stem = "table11"
    stated = (
        (
            "C=1: SFL is better with MNIST/MLP, MNIST/LeNet-5 and FMNIST/CNN",
            lambda task, c, k: c == 1 and task in ("MNIST, MLP", "MNIST, LeNet-5", "FMNIST, CNN"),
            lambda leads: min(leads.values()) > 0,
        ),
        (
            "C=1: SFL is worse with MNIST/logistic and FMNIST/LeNet-5, the more so with many local steps",
            lambda task, c, k: c == 1 and task in ("MNIST, logistic", "FMNIST, LeNet-5"),
            falls,
        ),
    )
    tasks: ClassVar = (
        ("MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5"),
        tuple(task for task in TASKS if "MNIST" in task),
    )


class Rates(Images):
    """A table of accuracies at every learning rate of the grid, on one seed."""

    choices = ("task", "classes", "steps", "method", "lr", "seed")
    rates: ClassVar = (GRID, GRID)

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        numbers = published_rates()
        rounds, last = self.stages[cache.scale == "paper"][0]
        measured = {
            cell: {lr: last_k(group, ACCURACY, last) for lr, group in groups.items()}
            for cell, groups in self.stage(cache, self.chosen(cache), rounds).items()
        }
        reference = {
            cell: numbers[VARIANTS.get(cell.task, cell.task), cell.classes, cell.steps, cell.method, cell.clip]
            for cell in measured
        }
        panels: dict[str, dict[str, tuple[Sweep, Sweep]]] = {}
        for cell, sweep in measured.items():
            panels.setdefault(self.heading(cell), {})[cell.method] = (sweep, reference[cell])
        figure = draw.sweeps(panels, draw.styles(METHODS), ACCURACY, "learning rate")
        complete = {cell: sweep for cell, sweep in measured.items() if len(sweep) == len(GRID[cell.method])}
        rows = [
            {"block": self.heading(cell), "method": cell.method}
            | {f"{lr:g}": (sweep[lr], reference[cell][lr]) for lr in sweep}
            for cell, sweep in measured.items()
        ]
        columns = [Column("method", "method")]
        columns += [
            Column(f"{lr:g}", f"lr {lr:g}", _both, None, True)
            for lr in sorted({lr for sweep in measured.values() for lr in sweep})
        ]
        caption = f"Test accuracy in %, ours | published: mean over the last {last} rounds of one seed."
        table = ReportTable(self.stem, caption, columns, rows)
        return Findings([table], self.claims(complete, reference) if complete else [], {self.stem: figure})

    def heading(self, cell: Point) -> str:
        """The heading of the cell's panel, which has both methods."""
        return f"{cell.task}, {row_name(cell)}"

    def claims(self, measured: Mapping[Point, Sweep], reference: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims of Sec. 4.2 about the best learning rates of SFL and PFL (parallel: FedAvg).

        In cells with both methods SFL's best rate is not above PFL's. Each best rate is the paper's, or next to it on
        the grid. measured, reference: cell -> learning rate -> accuracy; measured only for cells with the whole grid.
        """
        both: dict[str, dict[str, float]] = {}
        for cell, sweep in measured.items():
            both.setdefault(self.heading(cell), {})[cell.method] = best_rate(sweep)
        smaller = [rates["SFL"] <= rates["PFL"] for rates in both.values() if len(rates) == 2]
        ranks = {
            cell: [GRID[cell.method].index(best_rate(sweeps[cell])) for sweeps in (measured, reference)]
            for cell in measured
        }
        near = [abs(rank - other) <= 1 for rank, other in ranks.values()]
        order = _share("the best learning rate of SFL is not above that of PFL", smaller)
        return [
            *([order] if smaller else []),
            _share("the best learning rates are the paper's, or next to them on the grid", near),
        ]

    def missing(self, rows: Sequence[Row]) -> list[str]:
        return missing(self, rows)


def _share(text: str, holds: Sequence[bool]) -> Claim:
    return Claim(text, all(holds), f"in {sum(holds)} of {len(holds)}")


def _both(pair: tuple[Stat, Stat]) -> str:
    measured, reference = pair
    return f"{accuracy(measured)} | {accuracy_text(reference)}"


def accuracy(stat: Stat) -> str:
    """An accuracy in per cent without its std over rounds, which the paper's tables do not have."""
    return stat_text(Stat(stat.mean, float("nan"), stat.count, stat.of), ACCURACY)


@EXPERIMENTS.register("sfl/table10", paper="SFL [2] table 10, fig. 11")
class Table10(Rates):
    """Grid search of learning rates for every data set and model, C classes per client and K local steps."""

    stem = "table10"
    tasks: ClassVar = (("MNIST, logistic", "MNIST, MLP"), tuple(TASKS))
    steps: ClassVar = ((5, 20), (5, 20, 50))

    def run(self, cache: RunCache) -> Findings:
        """The published findings compare the rows with the authors' logs."""
        if isinstance(cache, LedgerRows):
            return rate_findings(self.stem, cache.folder, list(cache.rows.values()))
        return super().run(cache)


@EXPERIMENTS.register("sfl/fig2", paper="SFL [2] fig. 2")
class Fig2(Rates):
    """Learning rates of VGG-9 on CIFAR-10 (its rows of table 10)."""

    stem = "fig2"
    steps: ClassVar = ((5, 20), (5, 20, 50))

    def claims(self, measured: Mapping[Point, Sweep], reference: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims of `Rates`, and (ii) of Sec. 4.2: SFL's best learning rate falls with heterogeneity."""
        rates = nest(
            {cell: best_rate(sweep) for cell, sweep in measured.items() if cell.method == "SFL"}, "steps", "classes"
        )
        both = {k: lr for k, lr in rates.items() if len(lr) == 2}
        falls = all(lr[1] <= lr[2] for lr in both.values()) and any(lr[1] < lr[2] for lr in both.values())
        evidence = ", ".join(f"K={k}: {lr[1]:g} at C=1, {lr[2]:g} at C=2" for k, lr in both.items())
        extra = (
            [Claim("SFL's best learning rate is smaller on more heterogeneous data", falls, evidence)] if both else []
        )
        return [*super().claims(measured, reference), *extra]


@EXPERIMENTS.register("sfl/table7", paper="SFL [2] table 7")
class Table7(Rates):
    """Gradient clipping: VGG-9 on CIFAR-10 with four max norms at every learning rate.

    A row of the table has a max norm of PFL (parallel: FedAvg) and a larger one of SFL, or no clipping for both.
    """

    stem, norms = "table7", NORMS

    def heading(self, cell: Point) -> str:
        words = ("no clipping", "loose", "medium", "tight")
        return f"{row_name(cell)}, {words[[norms[cell.method] for norms in NORMS].index(cell.clip)]}"

    def claims(self, measured: Mapping[Point, Sweep], reference: Mapping[Point, Sweep]) -> list[Claim]:
        """The claims of `Rates`, and the observations of App. G.2 on gradient clipping."""
        rates = by({cell: best_rate(sweep) for cell, sweep in measured.items()}, "clip")
        loose_first = [[lrs[norm] for norm in sorted(lrs, key=lambda n: -(n or np.inf))] for lrs in rates.values()]
        larger = [all(b >= a for a, b in pairwise(lrs)) for lrs in loose_first]
        evidence = f"in {sum(larger)} of {len(larger)} settings"
        claims = clipping_claims({cell: sweep[best_rate(sweep)].mean for cell, sweep in measured.items()})
        last = Claim("a smaller max norm never has a smaller best learning rate (G.2, 4)", all(larger), evidence)
        return [*super().claims(measured, reference), *claims, last]


def clipping_claims(accuracies: Mapping[Point, float]) -> list[Claim]:
    """The claims in observations 1 to 3 of App. G.2 on gradient clipping.

    accuracies: the accuracy of each cell (C, K, method, max norm) at its best learning rate.
    """
    norms = by({cell: 100 * value for cell, value in accuracies.items()}, "clip")
    gain = {m: _mean(level[20] - level[None] for cell, level in norms.items() if cell.method == m) for m in METHODS}
    behind = {cell: max(level.values()) - level[min(filter(None, level))] for cell, level in norms.items()}
    evidence = ", ".join(f"{method} {points:+.1f} points" for method, points in gain.items())
    claims = [Claim("a max norm of 20 helps PFL more than SFL (G.2, 1)", gain["PFL"] > gain["SFL"], evidence)]
    most = max(cell.steps for cell in behind)
    by_class = {c: _mean(v for cell, v in behind.items() if cell.classes == c and cell.steps == most) for c in (1, 2)}
    evidence = f"K={most}: behind the best norm by {by_class[1]:.1f} points at C=1, by {by_class[2]:.1f} at C=2"
    text = "the tightest norm costs more on more heterogeneous data (G.2, 2)"
    claims.append(Claim(text, by_class[1] > by_class[2], evidence))
    steps = sorted({cell.steps for cell in behind})
    by_steps = [_mean(v for cell, v in behind.items() if cell.steps == k and cell.classes == 1) for k in steps]
    if len(steps) > 1:
        evidence = "C=1: " + ", ".join(f"K={k} {value:.1f} points" for k, value in zip(steps, by_steps, strict=True))
        text = "the tightest norm costs more with more local steps (G.2, 3)"
        claims.append(Claim(text, by_steps[-1] > by_steps[0], evidence))
    return claims


def _mean(values: Any) -> float:
    """The mean of the finite values."""
    finite = [v for v in values if np.isfinite(v)]
    return float(np.mean(finite)) if finite else float("nan")


@EXPERIMENTS.register("sfl/fig3", paper="SFL [2] fig. 3")
class Fig3(Images):
    """Effect of local steps: VGG-9 on CIFAR-10 at the best learning rate of each K.

    K: the number of local steps.
    """

    steps: ClassVar = ((1, 5, 10), (1, 2, 5, 10, 20))  # the paper names 1, 5 and 10

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        rounds, last = self.stages[cache.scale == "paper"][0]
        panels: dict[str, dict[str, tuple[dict[float, Stat], dict[float, Stat]]]] = {}
        for cell, groups in self.stage(cache, self.chosen(cache), rounds).items():
            sweep = {lr: last_k(group, ACCURACY, last) for lr, group in groups.items()}
            curve = panels.setdefault(f"C={cell.classes}", {}).setdefault(cell.method, ({}, {}))[0]
            curve[cell.steps] = sweep[best_rate(sweep)]
        figure = draw.sweeps(panels, draw.styles(METHODS), ACCURACY, "local steps K")
        claims = []
        for heading, lines in panels.items():
            sfl = {k: stat.mean for k, stat in lines["SFL"][0].items()}
            evidence = ", ".join(f"K={k:g} {100 * mean:.1f}" for k, mean in sfl.items())
            claims += [
                Claim(f"{heading}: SFL improves from K=1 to K=5", sfl[5] > sfl[1], evidence),
                Claim(f"{heading}: SFL deteriorates from K=5 to K=10", sfl[10] < sfl[5], evidence),
            ]
        rows = [
            {"block": heading, "method": method} | {f"K={k:g}": stat for k, stat in stats.items()}
            for heading, lines in panels.items()
            for method, (stats, _) in lines.items()
        ]
        columns = [Column("method", "method")]
        columns += [Column(f"K={k}", f"K={k}", accuracy_text, None, True) for k in self.steps[cache.scale == "paper"]]
        caption = f"Test accuracy in % over the last {last} rounds of one seed, best learning rate of each K."
        table = ReportTable("fig3", caption, columns, rows)
        return Findings([table], claims, {"fig3": figure}, [f"clipping {CLIP}"])


class TwoStages(Images):
    """VGG-9 on CIFAR-10: a short search on the whole grid of learning rates, then long runs of some of them."""

    measured = CLIENTS  # the long runs are those of table 3
    stages: ClassVar = (((60, 20), (120, 20)), (SHORT, LONG))

    def both(
        self, cache: RunCache, margin: float
    ) -> tuple[dict[Point, dict[float, Group]], dict[Point, dict[float, Group]]]:
        """The short runs of all rates and the long runs of those within a margin of the best: cell -> rate -> runs."""
        (short, last), (long, _) = self.stages[cache.scale == "paper"]
        tried = self.stage(cache, self.chosen(cache), short)
        left = {cell: close(groups, last, margin) for cell, groups in tried.items()}
        return tried, self.stage(cache, left if margin else {c: groups[:1] for c, groups in left.items()}, long)

    def curves_of(self, cache: RunCache, lines: Mapping[str, Mapping[str, Group]]) -> Figure:
        """A figure of accuracy curves; lines: heading of a panel -> name of a curve -> its runs."""
        from papers import draw

        plots = [draw.Plot(name, groups, ACCURACY, window=cache.pick(1, 16)) for name, groups in lines.items()]
        return draw.curves(plots, draw.styles({name: name for groups in lines.values() for name in groups}))


@EXPERIMENTS.register("sfl/table8", paper="SFL [2] table 8, fig. 9")
class Table8(TwoStages):
    """Gradient clipping in the long run: VGG-9 on CIFAR-10, four max norms at the best short-run learning rate.

    A long run has 4000 rounds, a short run 1000.
    """

    norms = NORMS

    def run(self, cache: RunCache) -> Findings:
        reference = {
            (int(row["classes"]), int(row["steps"]), method, norm(row[f"{method} clip"])): row[method].split()
            for row in table_of("sfl_long")
            for method in METHODS
        }
        (_, short), (_, long) = self.stages[cache.scale == "paper"]
        tried, continued = self.both(cache, 0.0)
        rows, ends, lines = [], {}, dict[str, dict[str, Group]]()
        for cell, groups in continued.items():
            ((lr, group),) = groups.items()
            ends[cell] = last_k(group, ACCURACY, long)
            clip = "none" if cell.clip is None else str(cell.clip)
            numbers = reference[cell.classes, cell.steps, cell.method, cell.clip]
            rows.append(
                {"row": f"{row_name(cell)}, {cell.method}", "clip": clip, "lr": lr}
                | {"short": last_k(tried[cell][lr], ACCURACY, short), "long": ends[cell], "their lr": float(numbers[0])}
                | {"their short": stat_of(numbers[1]), "their long": stat_of(numbers[2])}
            )
            lines.setdefault(f"{cell.method}, {row_name(cell)}", {})[clip] = group
        columns = [Column("row", ""), Column("clip", "max norm")]
        for key, heading in (("", "ours"), ("their ", "published")):
            columns.append(Column(f"{key}lr", f"{heading}: lr", lambda v: f"{v:g}", None, True))
            columns.append(Column(f"{key}short", "short run", accuracy, None, True))
            columns.append(Column(f"{key}long", "long run", accuracy, None, True))
        table = ReportTable("table8", "Test accuracy in % over the last rounds of one seed.", columns, rows)
        claims = clipping_claims({cell: stat.mean for cell, stat in ends.items()})
        return Findings([table], claims, {"fig9": self.curves_of(cache, lines)})


@EXPERIMENTS.register("sfl/table9", paper="SFL [2] table 9, fig. 10")
class Table9(TwoStages):
    """The fine search: VGG-9 on CIFAR-10, all learning rates within 3 points of the best in the long run.

    The learning rates within 3 points of the best after 1000 rounds are compared after 4000 rounds.
    """

    steps: ClassVar = ((5, 20), (5, 20, 50))

    def run(self, cache: RunCache) -> Findings:
        reference = {
            (int(row["classes"]), int(row["steps"]), method): candidates(row[method])
            for row in table_of("sfl_fine")
            for method in METHODS
        }
        _, (_, long) = self.stages[cache.scale == "paper"]
        _, runs = self.both(cache, CLOSE)
        rows, same = [], []
        for cell, groups in runs.items():
            measured = {lr: last_k(group, ACCURACY, long).mean for lr, group in groups.items()}
            numbers = reference[cell.classes, cell.steps, cell.method]
            rows.append(
                {
                    "block": row_name(cell),
                    "method": cell.method,
                    "ours": _text(measured),
                    "published": _text(numbers),
                }
            )
            same.append(_rank_rates(measured)[0] == _rank_rates(numbers)[0])
        columns = [Column("method", "method"), Column("ours", "ours"), Column("published", "published")]
        table = ReportTable("table9", "Candidates (long-run test accuracy in %), the best first.", columns, rows)
        lines = {
            f"{cell.method}, {row_name(cell)}": {f"lr {lr:g}": group for lr, group in groups.items()}
            for cell, groups in runs.items()
        }
        claim = _share("the best learning rates are the paper's", same)
        return Findings([table], [claim], {"fig10": self.curves_of(cache, lines)})


def candidates(text: str) -> dict[float, float]:
    """Learning rate -> published accuracy, from a text such as `0.03 28.72, 0.1 46.21`.

    The accuracy is nan if there is a single learning rate, for which the paper gives no number.
    """
    pairs = [part.split() for part in text.split(",")]
    return {float(pair[0]): float(pair[1]) / 100 if len(pair) > 1 else float("nan") for pair in pairs}


def _rank_rates(values: Mapping[float, float]) -> list[float]:
    return sorted(values, key=lambda lr: -values[lr] if np.isfinite(values[lr]) else 1.0)


def _text(values: Mapping[float, float]) -> str:
    return ", ".join(
        f"{lr:g}" + (f" ({100 * values[lr]:.2f})" if np.isfinite(values[lr]) else "") for lr in _rank_rates(values)
    )


class TrainingCurves(Images):
    """Losses and accuracies on the clients' data and on the test set, PFL and SFL at their best learning rates.

    "Training" is measured on the data of the participating clients; "training-R" on data of random clients, as many as
    take part in a round. share: the fraction of all measured points in a moving average. extra: further values of the
    final runs' points.
    """

    smoke_seeds, rates = 1, ({"PFL": (0.1,), "SFL": (0.03,)}, GRID)
    share: ClassVar[float] = 0.08
    extra: ClassVar[Mapping[str, Any]] = {"clients": True}  # of the final runs, which table 11 does not have
    metrics: ClassVar = ("participants/loss", "participants/accuracy", "random/loss", "random/accuracy", ACCURACY)
    curves = metrics[:-1]

    def points(self, scale: str) -> list[Point]:
        points = super().points(scale)
        return [*points, *(point.but(**self.extra) for point in points)] if self.extra else points

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        rounds, last = self.stages[cache.scale == "paper"][-1]
        rates = self.search(cache, self.chosen(cache))
        runs = self.stage(
            cache, {cell.but(**self.extra): [lr] for cell, lr in rates.items()}, rounds, self.of_scale(cache)
        )
        groups = {cell: runs[cell.but(**self.extra)][lr] for cell, lr in rates.items()}
        lines: dict[str, dict[str, Group]] = {}
        for cell, group in groups.items():
            lines.setdefault(f"{cell.task}, C={cell.classes}", {})[f"{cell.method}, K={cell.steps}"] = group
        window = cache.pick(1, max(1, round(self.share * rounds / 10)))  # evaluated every 10 rounds
        looks = draw.styles({name: name for panel in lines.values() for name in panel})
        figures = {
            f"{self.stem}_{rank}": draw.curves(
                [draw.Plot(heading, panel, m, band="std", window=window) for m in self.metrics], looks
            )
            for rank, (heading, panel) in enumerate(lines.items())
        }
        rows: list[dict[str, Any]] = [
            {"block": cell.task, "row": f"{row_name(cell)}, {cell.method}", "lr": rates[cell]}
            | {metric: last_k(group, metric, last) for metric in self.metrics}
            for cell, group in groups.items()
        ]
        columns = [Column("row", ""), Column("lr", "lr", lambda v: f"{v:g}", None, True)]
        columns += [Column(m, metric_name(m), partial(stat_text, metric=m), None, True) for m in self.metrics]
        table = ReportTable(self.stem, f"Mean ± std over seeds and the last {last} rounds.", columns, rows)
        return Findings([table], [], figures)


@EXPERIMENTS.register("sfl/fig12", paper="SFL [2] fig. 12")
class Fig12(TrainingCurves):
    """Training, training-R and test curves on MNIST."""

    stem, stages = "fig12", (((60, 20),), (SHORT,))
    tasks: ClassVar = (("MNIST, logistic",), ("MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5"))


@EXPERIMENTS.register("sfl/fig13", paper="SFL [2] fig. 13")
class Fig13(TrainingCurves):
    """Training, training-R and test curves on FashionMNIST."""

    stem, stages = "fig13", (((60, 20),), (SHORT,))
    tasks: ClassVar = (("FMNIST, LeNet-5",), ("FMNIST, LeNet-5", "FMNIST, CNN"))


@EXPERIMENTS.register("sfl/fig14", paper="SFL [2] fig. 14")
class Fig14(TrainingCurves):
    """Training, training-R and test curves on CIFAR-10, of the runs of table 3."""

    stem, share, stages = "fig14", 0.04, (((60, 20),), (SHORT, LONG))
    extra, measured = {}, CLIENTS
    tasks: ClassVar = ((VGG,), (VGG, "CIFAR-10, ResNet-18"))


@EXPERIMENTS.register("sfl/fig15", paper="SFL [2] fig. 15")
class Fig15(TrainingCurves):
    """Training, training-R and test curves on CINIC-10, of the runs of table 3."""

    stem, share, stages = "fig15", 0.04, (((60, 20),), (SHORT, LONG))
    extra, measured = {}, CLIENTS
    tasks: ClassVar = (("CINIC-10, VGG-9",), ("CINIC-10, VGG-9", "CINIC-10, ResNet-18"))
