"""The table of paired differences: the best setting of each scenario minus each other setting, on common seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raylfl.core.arrays import Floats
from raylfl.report.derived import BEST, best_setting, grows, recent, score
from raylfl.report.facets import Facet
from raylfl.report.runs import Group
from raylfl.report.statistics import Interval, paired_test
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import axis_name, is_percent, last_text, number

DIVERGED = "diverged"


def paired(parts: Sequence[Facet], metric: str, last: int) -> ReportTable | None:
    """The table of differences between the best setting of each scenario and each other setting, paired by seed.

    A scenario whose best setting diverged has no rows; None if no pair has two seeds in common.
    """
    rows = [row for part in parts for row in _of_scenario(part, metric, last)]
    if not rows:
        return None
    columns = [
        Column("pair", "pair"),
        Column("difference", f"{axis_name(metric)}, difference", lambda found: _text(found, metric), numeric=True),
        Column("seeds", "seeds", numeric=True),
        Column("ahead", "ahead"),
        Column("needed", "seeds needed", lambda count: "> 10\u2009000" if count is None else str(count), numeric=True),
    ]
    caption = (
        f"Best setting minus each other one: means over {last_text(last)}, paired by seed, with the 95 % interval of a "
        "paired t test. Open: the interval contains 0. Seeds needed: with which this test finds a difference of this "
        "size and spread in 80 % of all experiments."
    )
    return ReportTable("paired", caption, columns, rows)


def _of_scenario(part: Facet, metric: str, last: int) -> list[dict[str, Any]]:
    best, rows = best_setting(part.groups, metric, last), []
    if not np.isfinite(score(best, metric, last)):
        return []
    for other in part.groups:
        if other is best:
            continue
        ours, theirs = _shared(best, other, metric, last)
        if len(ours) < 2:
            continue
        common = {run.seed for run in best.runs} & {run.seed for run in other.runs}
        seeds = f"{len(ours)} of {len(common)}" if len(ours) < len(common) else str(len(ours))
        row: dict[str, Any] = {"block": part.label, "pair": f"{part.names[best]} − {part.names[other]}", "seeds": seeds}
        if np.isfinite(np.concatenate(theirs)).all():
            test = paired_test(ours, theirs)
            ahead = test.difference.low > 0 if grows(part.groups, metric) else test.difference.high < 0
            row |= {"difference": test.difference, "needed": test.needed}
        else:
            ahead, row = True, row | {"difference": DIVERGED}
        rows.append(row | {"ahead": part.names[best] if ahead else "open"})
    return rows


def _shared(a: Group, b: Group, metric: str, last: int) -> tuple[list[Floats], list[Floats]]:
    """The values in the last rounds for each common seed: (one array per seed for a, one array per seed for b).

    Both arrays of a seed have the rounds that its two runs share; all selected rounds if the run of b diverged, or with
    BEST. A seed without such a round is left out.
    """
    ours, theirs, others = list[Floats](), list[Floats](), {run.seed: run for run in b.runs}
    for run in a.runs:
        if (other := others.get(run.seed)) is None:
            continue
        here, there = recent(run, metric, last), recent(other, metric, last)
        values, others_values = run.column(metric)[here], other.column(metric)[there]
        if last != BEST and np.isfinite(others_values).all():
            _, first, second = np.intersect1d(run.rounds[here], other.rounds[there], return_indices=True)
            values, others_values = values[first], others_values[second]
        if len(values):
            ours.append(values)
            theirs.append(others_values)
    return ours, theirs


def _text(found: Interval | str, metric: str) -> str:
    """A difference with its interval: `+1.23 [+0.80, +1.70]` (accuracies in percentage points), or `diverged`."""
    if isinstance(found, str):
        return found
    values = found.mean, found.low, found.high
    mean, low, high = (f"{100 * v:+.2f}" if is_percent(metric) else f"{'+' * (v > 0)}{number(v, 3)}" for v in values)
    return f"{mean} [{low}, {high}]"
