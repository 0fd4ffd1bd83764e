"""SFL [2] (Li & Lyu, NeurIPS 2023): tables 3, 10 and 11, beside the published numbers and the authors' logs."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, ClassVar, TypeVar

import numpy as np
from matplotlib.figure import Figure

from papers import sfl_grid
from papers.base import EXPERIMENTS, Claim, Findings
from papers.grid import Point, by
from papers.ledger_rows import LedgerRows
from papers.lines import Plot, curves_figure, styles
from papers.numbers import ACCURACY, Level, accuracy_text, bootstrap_mean, difference, level, listing
from papers.run_cache import RunCache
from papers.sfl_grid import CLIENTS, GRID, LAST, METHODS, MORE, RATES, TASKS, VARIANTS, VGG, Images, Reference, axes
from raylfl.core.arrays import Floats
from raylfl.report.derived import Stat, last_k, tail
from raylfl.report.runs import Group, RunRecord
from raylfl.report.statistics import ALPHA, ConfidenceInterval, paired_test
from raylfl.report.tables import Column, ReportTable

MARGIN = 0.005  # difference of accuracies that counts as equivalent
PUBLISHED_SEEDS = 3
PANELS = 12
Setup = tuple[str, int, int]  # task, C, K
K = TypeVar("K")
Runs = Mapping[Point, Group]
Refs = Mapping[Point, Reference]  # excerpts of the authors' logs
WITHIN_LOG = "the mean over the last 400 rounds is within the spread of the authors' log"
CAPTION = (
    f"Test accuracy in %, one run (seed 1234) per line; {sfl_grid.SYMBOLS}. Last 40: the mean over the last 40 rounds, "
    "as in the paper. Last 400: our mean with a 95 % bootstrap interval; the authors' mean with the standard deviation "
    "sd of its rounds; `within`: the means differ by at most this sd. Difference: of the means over the last 400 "
    "rounds, with its 90 % interval; `same`: the interval is within ± 0.5 points, `not shown` if it is not. The "
    "intervals are about these two runs, not about other seeds."
)
ONE_SEED = (
    "the logs have one seed, so that the spread of the authors' seeds is unknown; `within` has the standard "
    "deviation of one log's rounds in its place, and is not a test of equality"
)


class Accuracies(Images):
    """A table of PFL (parallel: FedAvg) and SFL at their best learning rates: means over seeds and last rounds.

    stated: the paper's statements: text, its settings (task, C, K), and whether SFL's leads there agree.
    """

    stated: ClassVar[Sequence[tuple[str, Callable[[str, int, int], bool], Callable[[Mapping[Setup, float]], bool]]]]
    choices = ("task", "classes", "steps", "method", "lr", "seed")

    def run(self, cache: RunCache) -> Findings:
        rates, stage = self.chosen(cache), len(self.rounds[cache.scale]) - 1
        last, best = sfl_grid.last_rounds(self.rounds[cache.scale][-1]), self.search(cache, rates)
        sweeps = self.sweep(cache, {cell: [lr] for cell, lr in best.items()}, stage, self.of_scale(cache))
        runs = {cell: groups[best[cell]] for cell, groups in sweeps.items()}
        cells = sorted(runs, key=lambda cell: (cell.task, cell.classes, cell.steps, cell.method))
        groups = {cell.but(lr=best[cell], stage=stage): runs[cell] for cell in cells}
        complete = [cell for cell in runs if len(rates[cell]) == len(self.rates[cache.scale][cell.method])]
        lines = best_lines(groups, last)
        claims = self.claims({cell: last_k(runs[cell], ACCURACY, last) for cell in complete})
        if len(complete) == len(runs) and cache.scale == "paper":
            claims += mostly_within(lines, "the mean is within the published ± std")
        caption = (
            f"Test accuracy in %: mean ± std over seeds and the last {last} rounds, at the best learning rate; "
            f"{sfl_grid.SYMBOLS}. `same`: two one-sided t tests of our seeds' means against the published mean ± std, "
            f"taken as that of {PUBLISHED_SEEDS} seeds, show a difference of less than 0.5 points; `undecided`: fewer "
            f"than {PUBLISHED_SEEDS} seeds of ours."
        )
        heads = {"cell": "classes, steps", "method": "method", "lr": "best lr", "seeds": "our seeds", "ours": "ours"}
        heads |= {"theirs": "published, 3 seeds", "difference": "difference", "verdict": "within ± std"}
        table = text_table(self.stem, caption, heads, lines)
        return Findings([table], claims, {self.stem: overlay(groups, self.logs_of(cache, groups), lines)})

    def printed(self, cell: Point) -> Mapping[float, Stat]:
        place = sfl_grid.published_task(cell), cell.classes, cell.steps, cell.method
        published = sfl_grid.published_best().get(place)
        return {cell.lr: published} if published else {}

    def points(self, scale: str) -> list[Point]:
        tasks = list(self.axes["task"])
        return sorted(super().points(scale), key=lambda point: (tasks.index(point.task), point.method))

    def claims(self, ends: Mapping[Point, Stat]) -> list[Claim]:
        """The paper's statements and marks; ends: our accuracies."""
        published = sfl_grid.published_best().items()
        theirs = leads({place: stat for place, stat in published if place[0] in self.axes["task"]})
        ours = leads({(cell.task, cell.classes, cell.steps, cell.method): stat for cell, stat in ends.items()})
        ours = {setup: lead for setup, lead in ours.items() if setup in theirs}
        if not ours:
            return []
        marks = {setup: (mark(setup, ours[setup]), mark(setup, theirs[setup])) for setup in theirs if setup in ours}
        other = [f"{_place(setup)} {a}, published {b}" for setup, (a, b) in marks.items() if a != b]
        text = "the method ahead by more than 1 point (MNIST, FMNIST) or 2 points (CIFAR-10, CINIC-10) is the paper's"
        evidence = "; ".join([f"in {len(ours) - len(other)} of {len(ours)} settings", *other])
        claims = [Claim(text, not other and (True if len(ours) == len(theirs) else None), evidence)]
        for text, chosen, holds in self.stated:
            setups = [setup for setup in theirs if chosen(*setup)]
            if available := [setup for setup in setups if setup in ours]:
                told = [{_place(setup): f"{of[setup]:+.2f}" for setup in available} for of in (ours, theirs)]
                evidence, paper = (listing(of, str) for of in told)
                verdict = holds({s: ours[s] for s in available}) and (True if available == setups else None)
                claims.append(Claim(text, verdict, f"SFL - PFL in points: {evidence}", published=paper))
        return claims


def leads(ends: Mapping[tuple[Any, ...], Stat]) -> dict[Setup, float]:
    """(task, C, K) -> the lead of SFL over PFL in points; ends: (task, C, K, method) -> accuracy."""
    setups = dict.fromkeys(place[:3] for place in ends)
    both = [setup for setup in setups if all((*setup, method) in ends for method in METHODS)]
    return {setup: 100 * (ends[*setup, "SFL"].mean - ends[*setup, "PFL"].mean) for setup in both}


def mark(setup: Setup, lead: float) -> str:
    """The method that the paper's table marks at this lead of SFL in points."""
    margin = 1.0 if "MNIST" in setup[0] else 2.0
    return "none" if abs(lead) <= margin else "SFL" if lead > 0 else "PFL"


def falls(leads_of: Mapping[Setup, float]) -> bool:
    """Whether SFL is behind at the most local steps, and its lead falls with them, in each task."""
    tasks: dict[str, list[float]] = {}
    for (task, _, _), lead in sorted(leads_of.items()):
        tasks.setdefault(task, []).append(lead)
    return all(values[-1] < 0 and values[-1] < values[0] for values in tasks.values() if len(values) > 1)


def _place(setup: Sequence[Any]) -> str:
    return "{}, C={}, K={}".format(*setup)


CINIC_10 = "CINIC-10: SFL is better in all settings, by more than 2 points"
CIFAR_10 = "CIFAR-10, C=2: PFL is close or better in some settings (less than 2 points behind)"
BETTER = "C=1: SFL is better with MNIST/MLP, MNIST/LeNet-5 and FMNIST/CNN"
WORSE = "C=1: SFL is worse with MNIST/logistic and FMNIST/LeNet-5, the more so with many local steps"


@EXPERIMENTS.register("sfl/table3", paper="SFL [2] table 3")
class Table3(Accuracies):
    """PFL (parallel: FedAvg) and SFL with VGG-9 and ResNet-18 on CIFAR-10 and CINIC-10."""

    stem, measured = "table3", CLIENTS  # figures 14 and 15 share the long runs
    axes: ClassVar = axes([name for name in TASKS if "MNIST" not in name])
    small: ClassVar = Images.small | {"task": (VGG, "CIFAR-10, ResNet-18")}
    rounds: ClassVar = {"smoke": (100,), "paper": (1000, 4000)}
    stated = (
        ("C=1: SFL is better in all settings", lambda task, c, k: c == 1, lambda leads: min(leads.values()) > 0),
        (CINIC_10, lambda task, c, k: "CINIC" in task, lambda leads: min(leads.values()) > 2),
        (CIFAR_10, lambda task, c, k: "CIFAR" in task and c == 2, lambda leads: min(leads.values()) < 2),
    )


@EXPERIMENTS.register("sfl/table11", paper="SFL [2] table 11")
class Table11(Accuracies):
    """PFL (parallel: FedAvg) and SFL with logistic regression, MLP, LeNet-5 and a CNN on MNIST and FashionMNIST."""

    stem = "table11"
    axes: ClassVar = axes([name for name in TASKS if "MNIST" in name and name not in VARIANTS] + [*VARIANTS])
    small: ClassVar = Images.small | {"task": ("MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5")}
    better, worse = ("MNIST, MLP", "MNIST, LeNet-5", "FMNIST, CNN"), ("MNIST, logistic", "FMNIST, LeNet-5")
    stated = (
        (BETTER, lambda task, c, k: c == 1 and task in Table11.better, lambda leads: min(leads.values()) > 0),
        (WORSE, lambda task, c, k: c == 1 and task in Table11.worse, falls),
    )


@EXPERIMENTS.register("sfl/table10", paper="SFL [2] table 10, fig. 11")
class Table10(Images):
    """Grid search of learning rates for every data set and model, C classes per client and K local steps."""

    stem, choices = "table10", Accuracies.choices
    axes: ClassVar = axes(tuple(TASKS))
    small: ClassVar = {"task": ("MNIST, logistic", "MNIST, MLP"), "steps": (5, 20)}
    rates: ClassVar = {"smoke": GRID, "paper": GRID}

    def run(self, cache: RunCache) -> Findings:
        groups = self.groups(cache, seeds=self.seeds if isinstance(cache, LedgerRows) else self.seeds[:1])
        refs = self.logs_of(cache, groups)
        cells = {point: groups[point] for point in sorted(groups, key=lambda p: (*self.cell(p).values(),))}
        lines = rate_lines(cells, refs)
        heads = {"cell": "classes, steps", "method": "method", "lr": "lr", "ours 40": "ours, last 40"}
        heads |= {"log 40": "authors, last 40", "ours": "ours, last 400 [95 %]", "log": "authors, last 400 ± sd"}
        heads |= {"difference": "difference [90 %]", "verdict": "within ± sd"}
        claims = [*mostly_within((line for line in lines if line["ref"]), WITHIN_LOG), *method_claims(cells)]
        notes = [differences(cells, refs), looseness(cells)]
        table = text_table(self.stem, CAPTION, heads, lines)
        return Findings([table], claims, {self.stem: overlay(groups, refs, lines)}, notes)


def window(run: RunRecord, last: int) -> Floats:
    """The accuracies in the last rounds of a run; empty if it diverged."""
    values = tail(run, ACCURACY, last)
    return values if np.isfinite(values).all() else values[:0]


def searches(groups: Mapping[K, Group]) -> dict[K, RunRecord]:
    """Point or learning rate -> its run on the seed of the search."""
    return {key: run for key, group in groups.items() for run in group.runs if run.seed == sfl_grid.SEARCH_SEED}


def text_table(name: str, caption: str, heads: Mapping[str, str], lines: Sequence[dict[str, Any]]) -> ReportTable:
    heads = {**heads, "same": "same ± 0.5"}
    columns = [Column(key, head, str, None, key not in ("cell", "method")) for key, head in heads.items()]
    return ReportTable(name, caption, columns, list(lines))


def word_of(mean: float, reference: float, std: float) -> str:
    return "within" if abs(mean - reference) <= std else "above" if mean > reference else "below"


def compared(ours: Level, theirs: Level) -> tuple[ConfidenceInterval, str]:
    """A difference with its interval of level 1 - 2 ALPHA, and whether it is smaller than MARGIN by it (TOST)."""
    d = difference(ours, theirs, 1 - 2 * ALPHA)
    return d, "yes" if d.low > -MARGIN and d.high < MARGIN else "not shown"


def rate_lines(groups: Runs, refs: Refs) -> list[dict[str, Any]]:
    """The lines of table 10, one per run on the seed of the search."""
    lines, published = [], sfl_grid.published_rates()
    for point, run in searches(groups).items():
        ref, values = refs.get(point), window(run, MORE)
        printed = published.get((point.task, point.classes, point.steps, point.method, sfl_grid.clip(point)), {})
        log_end = ref.last[str(LAST)][0] if ref else printed[point.lr].mean if printed else None
        line = line_of(point)
        line |= {"name": f"{line['name']} lr {line['lr']}", "ref": ref is not None}
        line |= {"ours 40": _percent(float(window(run, LAST).mean()) if len(values) else None)}
        line |= {"log 40": _percent(log_end)} | dict.fromkeys(("ours", "log", "difference", "same"), "–")
        line["verdict"] = "–" if len(values) else "diverged"
        if len(values):
            line["ours"] = "{} [{}, {}]".format(*map(_percent, astuple(bootstrap_mean(values))))
        if len(values) and ref:
            mean, std, _, effective = ref.last[str(MORE)]
            d, line["same"] = compared(level(values), (mean, std, effective))
            line["verdict"] = word_of(float(np.mean(values)), mean, std)
            line["log"] = f"{_percent(mean)} ± {_percent(std)}"
            line["difference"] = f"{100 * d.mean:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
        outside = line["verdict"] not in ("within", "–")
        lines.append(line | {"remark": f"lr {line['lr']} {line['verdict']}" if outside else ""})
    return lines


def line_of(point: Point) -> dict[str, Any]:
    name = sfl_grid.row_name(point)
    head = {"block": point.task, "cell": name, "method": point.method, "lr": f"{point.lr:g}"}
    return head | {"name": f"{name.replace(',', '')} {point.method}"}


def best_lines(groups: Runs, last: int) -> list[dict[str, Any]]:
    """The lines of tables 3 and 11, one per cell."""
    lines, published_of = [], sfl_grid.published_best()
    for point, group in groups.items():
        if not (runs := [values for run in group.runs if len(values := window(run, last))]):
            continue
        measured = Stat.over(np.concatenate(runs))
        published = published_of[sfl_grid.published_task(point), point.classes, point.steps, point.method]
        verdict = word_of(measured.mean, published.mean, published.std)
        line = {"seeds": len(runs), "ours": accuracy_text(measured), "theirs": accuracy_text(published)}
        line |= {"difference": f"{100 * (measured.mean - published.mean):+.2f}", "verdict": verdict}
        line["same"] = same_seeds([float(np.mean(values)) for values in runs], published)
        line["remark"] = "" if verdict == "within" else f"{verdict} the published ± std"
        lines.append(line_of(point) | line)
    return lines


def same_seeds(means: Sequence[float], published: Stat) -> str:
    if len(means) < PUBLISHED_SEEDS:
        return "undecided"
    measured = float(np.mean(means)), float(np.std(means, ddof=1)), len(means)
    return compared(measured, (published.mean, published.std, PUBLISHED_SEEDS))[1]


def mostly_within(lines: Iterable[dict[str, Any]], claim: str) -> list[Claim]:
    """One claim per task: nine of ten lines have the verdict `within`; claim: what this means."""
    tasks: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        tasks.setdefault(line["block"], {}).setdefault(line["verdict"], []).append(line["name"])
    claims = []
    for task, names in tasks.items():
        total, count = sum(map(len, names.values())), len(names.pop("within", []))
        others = "".join(f"; {word}: {', '.join(cells)}" for word, cells in names.items())
        remark = "the network as the paper describes it; the authors' code has dropout" if task in VARIANTS else ""
        text = f"{task}: in at least nine of ten cells {claim}"
        claims.append(Claim(text, count >= 0.9 * total, f"{count} of {total} cells{others}", remark))
    return claims


def differences(groups: Runs, refs: Refs) -> str:
    """A sentence about the differences ours - log, with the networks of the authors' code."""
    cells = [point for point in searches(groups) if point.task not in VARIANTS and point in refs]
    runs = {point: values for point in cells if len(values := window(searches(groups)[point], MORE))}
    if not runs:
        return "no cell has a log"
    d = 100 * np.array([values.mean() - refs[point].last[str(MORE)][0] for point, values in runs.items()])
    near = int((abs(d) < 100 * MARGIN).sum())
    return (
        f"ours - log, means over the last {MORE} rounds of the {len(d)} cells with the networks of the authors' code: "
        f"median |difference| {np.median(abs(d)):.2f} points, below {100 * MARGIN:g} points in {near} cells "
        f"({100 * near / len(d):.0f} %), mean difference {d.mean():+.2f} points"
    )


def looseness(groups: Runs) -> str:
    """A sentence on what the verdict `within` cannot say."""
    windows = [[window(run, MORE) for run in group.runs] for group in groups.values()]
    cells = [runs for runs in windows if len(runs) >= PUBLISHED_SEEDS and all(map(len, runs))]
    if not cells:
        return ONE_SEED
    rounds = [np.mean([np.std(run, ddof=1) for run in runs]) for runs in cells]
    ratios = np.array(rounds) / [np.std([np.mean(run) for run in runs], ddof=1) for runs in cells]
    return (
        f"{ONE_SEED}: in our {len(ratios)} cells with three seeds it is {np.median(ratios):.1f} times the standard "
        f"deviation of the seeds' means in the median, and larger in {sum(ratio > 1 for ratio in ratios)}"
    )


def method_claims(groups: Runs) -> list[Claim]:
    """One claim per task, C and K with both complete grids, by a paired t test over seeds."""
    best = by({cell: best_runs(of) for cell, of in by(groups, "lr").items()}, "method")
    text = "{}: SFL is ahead of PFL at their best learning rates"
    return [
        Claim(text.format(_place((cell.task, cell.classes, cell.steps))), *_ahead(methods["SFL"], methods["PFL"]))
        for cell, methods in best.items()
        if all(methods.get(name) for name in METHODS)
    ]


def _ahead(sfl: Mapping[int, Floats], pfl: Mapping[int, Floats]) -> tuple[bool | None, str]:
    """Whether SFL is ahead of PFL, with the numbers; sfl, pfl: seed -> the values of the run."""
    seeds = sorted(sfl.keys() & pfl.keys())
    pairs = [(sfl[seed], pfl[seed]) for seed in seeds]
    if len(seeds) < 2:
        points = [f"SFL - PFL: {100 * (np.mean(a) - np.mean(b)):+.2f} points; one seed" for a, b in pairs]
        return None, points[0] if points else "no common seed"
    test = paired_test(*zip(*pairs, strict=True))
    d = test.difference
    evidence = f"SFL - PFL: {100 * d.mean:+.2f} points, 95 % interval {100 * d.low:+.2f} to {100 * d.high:+.2f}"
    evidence += f"; seeds {', '.join(map(str, seeds))}"
    if not d.covers(0.0):
        return d.low > 0, evidence
    needed = f"; about {test.needed} seeds would decide a difference of this size" if test.needed else ""
    return None, evidence + needed


def best_runs(tried: Mapping[float, Group]) -> dict[int, Floats]:
    """Seed -> last accuracies of a cell's run at its best learning rate; empty without all rates."""
    search = {lr: window(run, LAST) for lr, run in searches(tried).items()}
    if len(search) < len(GRID["SFL"]) or not any(map(len, search.values())):
        return {}
    best = max(search, key=lambda lr: search[lr].mean() if len(search[lr]) else -math.inf)
    return {run.seed: values for run in tried[best].runs if len(values := window(run, MORE))}


def overlay(groups: Runs, refs: Refs, lines: Iterable[Mapping[str, Any]]) -> Figure:
    """A figure of at most PANELS cells: ours solid, the authors' logs dashed; those with a remark come first."""
    places: dict[tuple[str, str, str], dict[str, Point]] = {}
    for point in refs or groups:
        places.setdefault((point.task, sfl_grid.row_name(point), point.method), {})[f"lr {point.lr:g}"] = point
    remarks = defaultdict[tuple[str, str, str], list[str]](list)
    for line in lines:
        if line["remark"] and line["block"] not in VARIANTS:
            remarks[line["block"], line["cell"], line["method"]].append(line["remark"])
    first = [place for place in places if place in remarks][:PANELS]
    others = [place for place in places if place not in remarks]
    room = min(PANELS - len(first), len(others))
    shown = [*first, *(others[k] for k in np.linspace(0, len(others) - 1, room).round().astype(int))]
    plots = []
    for place in shown:
        heading = "\n".join(filter(None, [place[0], ", ".join(place[1:]), ", ".join(remarks[place])]))
        logs = {name: refs[point].curve for name, point in places[place].items() if point in refs}
        plots.append(Plot(heading, {name: groups[p] for name, p in places[place].items()}, ACCURACY, logs=logs))
    return curves_figure(plots, styles({f"lr {lr:g}": f"lr {lr:g}" for lr in RATES}))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
