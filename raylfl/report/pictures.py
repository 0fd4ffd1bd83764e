"""Pictures of partitions and participation in a report, one for each distinct world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raylfl.report import partition_plot
from raylfl.report.facets import split, world_keys
from raylfl.report.labels import display, method_of
from raylfl.report.participation_plot import participation_figure
from raylfl.report.runs import Group, Ints, RunRecord

MAX_PICTURES = 6  # of a kind: a page is no place for the partitions of a whole sweep
_COMPARED = 100  # rounds that tell two participations apart


@dataclass(frozen=True)
class Picture:
    """A finished figure, the file it is saved under, its caption."""

    name: str
    caption: str
    figure: Figure


def partition_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Bubbles (area = samples of a class at a client) and bars of the partitions that differ."""
    pictures = []
    for name, label, run in _distinct(groups, ("partition", "data", "num_clients"), "partition", _counts):
        assert run.partition_counts is not None
        classes, counts = run.partition_counts
        sizes = counts.sum(axis=1)
        caption = f"Partition{label}, seed {run.seed}: {len(counts)} clients, "
        caption += f"{sizes.min()} to {sizes.max()} samples each."
        pictures.append(Picture(name, caption, partition_plot.figure(counts, classes)))
    return pictures


def participation_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Raster, frequencies and gaps of the recorded participations that differ."""
    pictures = []
    keys = ("participation", "link", "num_clients")
    for name, label, run in _distinct(groups, keys, "participation", _cohorts):
        figure = participation_figure(run.participation, run.clients)
        pictures.append(Picture(name, f"Participation{label}, seed {run.seed}.", figure))
    return pictures


def partition_drawer(groups: Sequence[Group]) -> Callable[[Axes], None] | None:
    """Draws the partition of the first run that kept one; None where none did."""
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
    """(file name, label, run) of the worlds whose content differs; runs of equal seed are compared.

    The label names the world, and the method where methods of one world differ (they sample for themselves).
    """
    keys = [key for key in world_keys(groups) if key.split(".")[0] in config_groups]
    found = []
    for part in split(groups, keys):
        runs = [run for group in part.groups for run in group.runs if run.seed == part.groups[0].runs[0].seed]
        seen = {content(run): run for run in reversed(runs)}
        seen.pop(None, None)
        for run in reversed(seen.values()):
            words = [part.label] if part.label else []
            words += [display(method_of(run.setting))] if len(seen) > 1 else []
            found.append((" of " + ", ".join(words) if words else "", run))
    chosen = found[:MAX_PICTURES]
    names = [name] if len(chosen) == 1 else [f"{name}_{index + 1}" for index in range(len(chosen))]
    return [(file, label, run) for file, (label, run) in zip(names, chosen, strict=True)]


def _counts(run: RunRecord) -> bytes | None:
    return None if run.partition_counts is None else run.partition_counts[1].tobytes()


def _cohorts(run: RunRecord) -> str | None:
    """Cohorts and received uploads as a text, sorted: a ring orders the same cohort for itself."""
    rows = [sorted(zip(row["cohort"], row["received"], strict=True)) for row in run.participation[:_COMPARED]]
    return repr(rows) if rows else None
