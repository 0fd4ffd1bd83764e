"""Figures of partitions and participation in a report, one for each distinct partition or participation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raylfl.core.arrays import Ints
from raylfl.report import partition_plot
from raylfl.report.facets import scenario_keys, split
from raylfl.report.labels import display, method_of
from raylfl.report.participation_plot import participation_figure
from raylfl.report.runs import Group, RunRecord

MAX_PICTURES = 6  # largest number of figures of a kind on the page, for sweeps over many scenarios
_COMPARED = 100  # number of first rounds in which two participations are compared


@dataclass(frozen=True)
class Picture:
    """A figure with its file name (without ending) and caption."""

    name: str
    caption: str
    figure: Figure


def partition_pictures(groups: Sequence[Group]) -> list[Picture]:
    """One figure per distinct partition (`partition_plot.figure`), at most MAX_PICTURES."""
    pictures = []
    for name, label, run in _distinct(groups, ("partition", "data", "num_clients"), "partition", _counts):
        assert run.partition_counts is not None
        classes, counts = run.partition_counts
        sizes = counts.sum(axis=1)
        caption = f"Partition{label}, seed {run.seed}: {len(counts)} clients, "
        caption += f"{sizes.min()} to {sizes.max()} samples each."
        pictures.append(Picture(name, caption, partition_plot.figure(counts, classes, names=run.client_names)))
    return pictures


def participation_pictures(groups: Sequence[Group]) -> list[Picture]:
    """One figure per distinct recorded participation (`participation_figure`), at most MAX_PICTURES."""
    pictures = []
    keys = ("participation", "link", "num_clients")
    for name, label, run in _distinct(groups, keys, "participation", _cohorts):
        figure = participation_figure(run.participation, run.clients, names=run.client_names)
        pictures.append(Picture(name, f"Participation{label}, seed {run.seed}.", figure))
    return pictures


def partition_drawer(groups: Sequence[Group]) -> Callable[[Axes], None] | None:
    """A function that draws the partition of the first run whose class counts are recorded; None without such a run."""
    for run in (run for group in groups for run in group.runs):
        if run.partition_counts is not None:
            classes, counts = run.partition_counts
            return partial(_draw_partition, counts=counts, classes=classes)
    return None


def _draw_partition(ax: Axes, counts: Ints, classes: list[str]) -> None:
    partition_plot.bubble(ax, counts, classes)
    if len(counts) <= partition_plot.MAX_BUBBLES:  # fewer labels than in a figure of its own
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10]))


def _distinct(
    groups: Sequence[Group], config_groups: Sequence[str], name: str, content: Callable[[RunRecord], Any]
) -> list[tuple[str, str, RunRecord]]:
    """The runs to draw as (file name, label, run), one for each distinct `content`; at most MAX_PICTURES.

    content: returns the partition or participation of a run in a hashable form; None if it is not recorded. It depends
    on the keys of config_groups, such as `partition`; only scenarios that differ in these keys are told apart. Within a
    scenario, the runs with the seed of its first run are compared. name: the beginning of the file name.

    The label names the scenario. It also names the method if the runs of the scenario have different contents, because
    some methods sample clients themselves.
    """
    keys = [key for key in scenario_keys(groups) if key.split(".")[0] in config_groups]
    found = []
    for part in split(groups, keys):
        runs = [run for group in part.groups for run in group.runs if run.seed == part.groups[0].runs[0].seed]
        seen = {content(run): run for run in reversed(runs)}
        seen.pop(None, None)
        for run in reversed(seen.values()):
            words = [part.label] if part.label else []
            words += [display(method_of(run.setting))] if len(seen) > 1 else []
            found.append((" of " + ", ".join(words) if words else "", run))
    return [
        (name if len(found) == 1 else f"{name}_{k}", label + left_out(k, len(found)), run)
        for k, (label, run) in enumerate(found[:MAX_PICTURES], 1)
    ]


def left_out(k: int, total: int) -> str:
    """A note for the caption of figure k = 1, 2, ... of `total`: ` (the first 6 of 9 are drawn)`.

    Only the last figure drawn has the note, and only if figures are left out. Otherwise the result is "".
    """
    return f" (the first {k} of {total} are drawn)" if k == MAX_PICTURES < total else ""


def _counts(run: RunRecord) -> bytes | None:
    return None if run.partition_counts is None else run.partition_counts[1].tobytes()


def _cohorts(run: RunRecord) -> str | None:
    """The cohorts and received uploads of the first _COMPARED rounds as a string; None without a record.

    Cohorts are sorted: the same clients in another order (as in a ring) are the same participation.
    """
    rows = [sorted(zip(row["cohort"], row["received"], strict=True)) for row in run.participation[:_COMPARED]]
    return repr(rows) if rows else None
