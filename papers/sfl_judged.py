"""The judgement of SFL's tables 3, 10 and 11: rows of the ledger beside the paper and the authors' logs.

PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papers.base import Claim, Findings
from papers.ledger import Row
from papers.sfl_cells import GRID, METHODS, SEARCH_SEED, SYMBOLS, VARIANTS
from papers.sfl_curves import overlay
from papers.sfl_logs import LAST, MORE, Reference, by_place, key, references
from papers.statistics import Level, bootstrap_mean, equivalent, level
from papers.texts import accuracy_text
from raylfl.report.derived import Stat
from raylfl.report.statistics import paired_test
from raylfl.report.tables import Column, ReportTable

MARGIN = 0.005  # difference of accuracies that counts as equivalent
SAME = {True: "yes", False: "not shown"}  # equivalence that a test does not show may exist nevertheless
PUBLISHED_SEEDS = 3


def verdict(row: Row, ref: Reference | None) -> str:
    """The verdict on a run: `within`, `above` or `below` the authors' log, `diverged`, or `–` without a log.

    It is `within` if the mean accuracies of run and log over the last 400 rounds differ by at most the standard
    deviation of the log's accuracy over these rounds.
    """
    if row.diverged:
        return "diverged"
    if ref is None:
        return "–"
    mean, std = ref.last[str(MORE)][:2]
    difference = float(np.mean(row.window(MORE))) - mean
    return "within" if abs(difference) <= std else "above" if difference > 0 else "below"


def cells_table(name: str, rows: Sequence[Row], refs: Mapping[str, Reference]) -> ReportTable:
    """A table with one row per cell and learning rate, for the runs on the seed SEARCH_SEED.

    The columns are our accuracy, the accuracy in the authors' log, their difference, and the verdicts. refs: excerpts
    of the authors' logs by the `key` of a cell.
    """
    lines = []
    for row in (row for row in rows if row.seed == SEARCH_SEED):
        ref, cell = refs.get(key(row.cell)), row.cell
        line = {
            "block": cell["task"],
            "cell": f"C={cell['classes']}, K={cell['steps']}",
            "method": cell["method"],
            "lr": f"{cell['lr']:g}",
            "ours 40": _percent(row.last[str(LAST)]),
            "log 40": _percent(ref.last[str(LAST)][0]) if ref else "–",
            "verdict": verdict(row, ref),
            "ours": "–",
            "log": "–",
            "difference": "–",
            "same": "–",
        }
        lines.append(line | _long(row, ref))
    heads = {
        "cell": "classes, steps",
        "method": "method",
        "lr": "lr",
        "ours 40": "ours, last 40",
        "log 40": "authors, last 40",
        "ours": "ours, last 400 [95 %]",
        "log": "authors, last 400 ± sd",
        "difference": "difference [90 %]",
        "verdict": "within ± sd",
        "same": "same ± 0.5",
    }
    columns = [Column(name, head, str, None, name not in ("cell", "method")) for name, head in heads.items()]
    return ReportTable(name, CAPTION, columns, lines)


CAPTION = (
    f"Test accuracy in %, one run (seed 1234) per line; {SYMBOLS}. Last 40: the mean over the last 40 rounds, as in "
    "the paper. Last 400: our mean with a 95 % bootstrap interval; the authors' mean with the standard deviation sd "
    "of its rounds; `within`: the means differ by at most this sd. Difference: of the means over the last 400 rounds, "
    "with its 90 % interval; `same`: the interval is within ± 0.5 points, `not shown` if it is not. The intervals are "
    "about these two runs, not about other seeds."
)


def _long(row: Row, ref: Reference | None) -> dict[str, str]:
    """The entries of a table row about the last 400 rounds; none if the run diverged.

    ref: the excerpt of the authors' log; without it the entries about the log are left out.
    """
    values = row.window(MORE)
    if not values:
        return {}
    interval = bootstrap_mean([values])
    out = {"ours": f"{_percent(interval.mean)} [{_percent(interval.low)}, {_percent(interval.high)}]"}
    if ref:
        mean, std, _, effective = ref.last[str(MORE)]
        test = equivalent(level(values), Level(mean, std, effective), MARGIN)
        d = test.difference
        out["log"] = f"{_percent(mean)} ± {_percent(std)}"
        out["difference"] = f"{100 * d.mean:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
        out["same"] = SAME[test.holds]
    return out


def cell_claims(rows: Sequence[Row], refs: Mapping[str, Reference]) -> list[Claim]:
    """One claim per task: at least nine of ten of its cells are within the spread of the authors' log.

    A cell with its learning rate counts if it has a log and a run on the seed SEARCH_SEED. The network as printed in
    the paper differs from that of the authors' code and is a task of its own.
    """
    words: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.seed == SEARCH_SEED and (ref := refs.get(key(row.cell))):
            words.setdefault(row.cell["task"], {})[_name(row)] = verdict(row, ref)
    claim = "the mean over the last 400 rounds is within the spread of the authors' log"
    return [_within(task, claim, verdicts) for task, verdicts in words.items()]


def _within(task: str, claim: str, words: Mapping[str, str]) -> Claim:
    """The claim that at least nine of ten cells of a task have the verdict `within`.

    claim: what holds in each of them; words: the verdict of each cell by its name.
    """
    names = {word: [name for name, other in words.items() if other == word] for word in words.values()}
    count = len(names.pop("within", []))
    others = "".join(f"; {word}: {', '.join(cells)}" for word, cells in names.items())
    remark = "the network as the paper describes it; the authors' code has dropout" if task in VARIANTS else ""
    text = f"{task}: in at least nine of ten cells {claim}"
    return Claim(text, count >= 0.9 * len(words), f"{count} of {len(words)} cells{others}", remark)


def differences(rows: Sequence[Row], refs: Mapping[str, Reference]) -> str:
    """A sentence about the differences ours - log: median absolute value, share below MARGIN, mean.

    A difference is that of the means over the last 400 rounds, for a cell with the network of the authors' code, on the
    seed SEARCH_SEED. Diverged runs are left out.
    """
    counted = [row for row in rows if row.seed == SEARCH_SEED and row.cell["task"] not in VARIANTS and not row.diverged]
    pairs = [(row, ref) for row in counted if (ref := refs.get(key(row.cell)))]
    if not pairs:
        return "no cell has a log"
    d = 100 * np.array([np.mean(row.window(MORE)) - ref.last[str(MORE)][0] for row, ref in pairs])
    near = int((abs(d) < 100 * MARGIN).sum())
    return (
        f"ours - log, means over the last {MORE} rounds of the {len(d)} cells with the networks of the authors' code: "
        f"median |difference| {np.median(abs(d)):.2f} points, below {100 * MARGIN:g} points in {near} cells "
        f"({100 * near / len(d):.0f} %), mean difference {d.mean():+.2f} points"
    )


def looseness(rows: Sequence[Row]) -> str:
    """A sentence on what the verdict `within` cannot say, with the ratio of our std over rounds to that over seeds."""
    windows: dict[str, list[list[float]]] = {}
    for row in rows:
        windows.setdefault(key(row.cell), []).append(row.window(MORE))
    cells = [runs for runs in windows.values() if len(runs) >= PUBLISHED_SEEDS and all(runs)]
    text = (
        "the logs have one seed, so that the spread of the authors' seeds is unknown; `within` has the standard "
        "deviation of one log's rounds in its place, and is not a test of equality"
    )
    if not cells:
        return text
    ratios = [
        np.mean([np.std(run, ddof=1) for run in runs]) / np.std([np.mean(run) for run in runs], ddof=1)
        for runs in cells
    ]
    return (
        f"{text}: in our {len(ratios)} cells with three seeds it is {np.median(ratios):.1f} times the standard "
        f"deviation of the seeds' means in the median, and larger in {sum(ratio > 1 for ratio in ratios)}"
    )


def method_claims(rows: Sequence[Row]) -> list[Claim]:
    """One claim per task, C and K: SFL is more accurate than PFL (FedAvg), each at its best learning rate.

    C: classes per client; K: local steps. The claim is judged by a paired t test over seeds. It is open if the interval
    contains 0. It is also open with one seed, as the rounds of one run say nothing about other seeds. Cells without a
    complete grid for both methods have no claim.
    """
    claims = []
    for (task, classes, steps), cell_rows in by_place(rows).items():
        tops = {method: best_rows([row for row in cell_rows if row.cell["method"] == method]) for method in METHODS}
        if not all(tops.values()):
            continue
        seeds = sorted(set.intersection(*({row.seed for row in cell_rows} for cell_rows in tops.values())))
        picked = {m: [row for s in seeds for row in cell_rows if row.seed == s] for m, cell_rows in tops.items()}
        sfl, pfl = ([row.window(MORE) for row in picked[method]] for method in ("SFL", "PFL"))
        text = f"{task}, C={classes}, K={steps}: SFL is ahead of PFL at their best learning rates"
        claims.append(Claim(text, *_ahead(sfl, pfl, seeds)))
    return claims


def _ahead(
    sfl: Sequence[Sequence[float]], pfl: Sequence[Sequence[float]], seeds: Sequence[int]
) -> tuple[bool | None, str]:
    """Whether SFL is ahead of PFL (None: open), with the numbers; sfl, pfl: the values of the runs of these seeds."""
    if len(seeds) < 2:
        points = ", ".join(f"{100 * (np.mean(a) - np.mean(b)):+.2f} points" for a, b in zip(sfl, pfl, strict=True))
        return None, f"SFL - PFL: {points or '–'}; one seed" if seeds else "no common seed"
    test = paired_test(sfl, pfl)
    d = test.difference
    evidence = f"SFL - PFL: {100 * d.mean:+.2f} points, 95 % interval {100 * d.low:+.2f} to {100 * d.high:+.2f}"
    evidence += f"; seeds {', '.join(map(str, seeds))}"
    if not d.covers(0.0):
        return d.low > 0, evidence
    needed = f"; about {test.needed} seeds would decide a difference of this size" if test.needed else ""
    return None, evidence + needed


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """The runs of one cell at its best learning rate, on all seeds; empty if the grid is incomplete.

    The best learning rate has the highest mean over the last 40 rounds on the seed SEARCH_SEED. Diverged runs are left
    out.
    """
    search = {row.cell["lr"]: row for row in rows if row.seed == SEARCH_SEED}
    if len(search) < len(GRID["SFL"]) or all(row.diverged for row in search.values()):
        return []
    best = max(search, key=lambda lr: search[lr].last[str(LAST)] or -math.inf)
    return [row for row in rows if row.cell["lr"] == best and not row.diverged]


def _outside(rows: Sequence[Row], refs: Mapping[str, Reference]) -> dict[tuple[Any, ...], str]:
    """Cell -> its learning rates whose run diverged, or is above or below the authors' log (`verdict`), as text.

    Cells with another network than the authors' are left out.
    """
    outside: dict[tuple[Any, ...], str] = {}
    for cell, cell_rows in by_place(rows, "method").items():
        words = {row.cell["lr"]: verdict(row, refs.get(key(row.cell))) for row in cell_rows if row.seed == SEARCH_SEED}
        rates = [f"lr {lr:g} {word}" for lr, word in sorted(words.items()) if word not in ("within", "–")]
        if rates and cell[0] not in VARIANTS:
            outside[cell] = ", ".join(rates)
    return outside


def rate_findings(name: str, folder: Path, rows: Sequence[Row]) -> Findings:
    """The findings of table 10 from the rows of the ledger in this folder: every cell at every learning rate."""
    refs = references(folder, rows)
    claims = [*cell_claims(rows, refs), *method_claims(rows)]
    notes = [differences(rows, refs), looseness(rows)]
    return Findings([cells_table(name, rows, refs)], claims, {name: overlay(rows, refs, _outside(rows, refs))}, notes)


def best_findings(
    name: str,
    folder: Path | None,
    rows: Sequence[Row],
    published: Mapping[tuple[str, int, int, str], Stat],
    last: int,
    stated: Sequence[Claim],
) -> Findings:
    """The findings of tables 3 and 11: every cell at its best learning rate, over seeds.

    name: the name of the table. folder: of the ledger with the rows; None if they are not published. rows: of the best
    learning rates. published: (task, C, K, method) -> the paper's accuracy. last: the number of last rounds that are
    averaged. stated: the paper's claims, judged.
    """
    refs = references(folder, rows) if folder else {}
    lines, verdicts = [], dict[str, dict[str, str]]()
    outside: dict[tuple[Any, ...], str] = {}
    for cell, top in by_place([row for row in rows if not row.diverged], "method").items():
        task, classes, steps, method = cell
        measured = Stat.over(np.concatenate([row.window(last) for row in top]))
        reference = published[VARIANTS.get(task, task), classes, steps, method]
        same = _same([float(np.mean(row.window(last))) for row in top], reference)
        inside = abs(measured.mean - reference.mean) <= reference.std
        word = "within" if inside else "above" if measured.mean > reference.mean else "below"
        verdicts.setdefault(task, {})[f"C={classes} K={steps} {method}"] = word
        if word != "within" and task not in VARIANTS:
            outside[cell] = f"{word} the published ± std"
        lines.append(
            {
                "block": task,
                "cell": f"C={classes}, K={steps}",
                "method": method,
                "lr": f"{top[0].cell['lr']:g}",
                "seeds": len(top),
                "ours": accuracy_text(measured),
                "theirs": accuracy_text(reference),
                "difference": f"{100 * (measured.mean - reference.mean):+.2f}",
                "verdict": word,
                "same": same,
            }
        )
    heads = {"cell": "classes, steps", "method": "method", "lr": "best lr", "seeds": "our seeds", "ours": "ours"}
    heads |= {"theirs": "published, 3 seeds", "difference": "difference", "verdict": "within ± std"}
    heads["same"] = "same ± 0.5"
    columns = [Column(key, head, str, None, key not in ("cell", "method")) for key, head in heads.items()]
    caption = (
        f"Test accuracy in %: mean ± std over seeds and the last {last} rounds, at the best learning rate; {SYMBOLS}. "
        "`same`: two one-sided t tests of our seeds' means against the published mean ± std, taken as that of "
        f"{PUBLISHED_SEEDS} seeds, show a difference of less than 0.5 points; `undecided`: fewer than "
        f"{PUBLISHED_SEEDS} seeds of ours."
    )
    claims = [_within(task, "the mean is within the published ± std", words) for task, words in verdicts.items()]
    table = ReportTable(name, caption, columns, lines)
    return Findings([table], [*stated, *claims], {name: overlay(rows, refs, outside)})


def _same(means: Sequence[float], reference: Stat) -> str:
    """Whether our accuracy is equivalent to the published one, in a word; means: our seeds' mean accuracies."""
    if len(means) < PUBLISHED_SEEDS:
        return "undecided"
    measured = Level(float(np.mean(means)), float(np.std(means, ddof=1)), len(means))
    return SAME[equivalent(measured, Level(reference.mean, reference.std, PUBLISHED_SEEDS), MARGIN).holds]


def _name(row: Row) -> str:
    cell = row.cell
    return f"C={cell['classes']} K={cell['steps']} {cell['method']} lr {cell['lr']:g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
