"""Figures of clients in a report: partitions, participation, and graphs of methods without a server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raylfl.core.arrays import Ints
from raylfl.diagnostics.metric_names import OF_NODES, direction, is_percent
from raylfl.report import partition_plot
from raylfl.report.derived import scenario_keys, split
from raylfl.report.labels import display, method_of
from raylfl.report.participation_plot import participation_figure
from raylfl.report.runs import Group, RunRecord
from raylfl.report.topology_plot import MOST, Net, Shade, coloured_figure
from raylfl.report.wording import axis_name
from raylfl.runtime.records.lines import last_row

MAX_PICTURES = 6  # largest number of figures of a kind on the page, for sweeps over many scenarios
RECORD = "topology.jsonl"
COLOURED = ("accuracy", "distance", "loss", "from_mean")  # metrics of nodes; the first measured one gives the colours
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

    content: the partition or participation of a run, hashable; None if it is not recorded. It depends on the keys of
    config_groups: scenarios that differ in other keys are one. Within a scenario, the runs with the seed of its first
    run are compared. The label names the scenario, and the method if contents differ: some methods sample clients.
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
    """The note ` (the first 6 of 9 are drawn)` for the last figure drawn if others are left out, else ""."""
    return f" (the first {k} of {total} are drawn)" if k == MAX_PICTURES < total else ""


def _counts(run: RunRecord) -> bytes | None:
    return None if run.partition_counts is None else run.partition_counts[1].tobytes()


def _cohorts(run: RunRecord) -> str | None:
    """The first _COMPARED cohorts, sorted: a ring's order is no other participation. None without a record."""
    rows = [sorted(zip(row["cohort"], row["received"], strict=True)) for row in run.participation[:_COMPARED]]
    return repr(rows) if rows else None


def last_graph(run: RunRecord) -> Net | None:
    """The graph of a run's last recorded round; None without a readable record, and then a fault of the run."""
    path = run.path / RECORD
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        return _read(last_row(path) or {}, run)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        run.faults.append(f"{RECORD}: its last line cannot be read")
        return None


def _read(row: Mapping[str, Any], run: RunRecord) -> Net:
    count, topology = run.clients, run.config.get("topology") or {}
    matrix = row.get("W") or row.get("R") or row["C"]
    entries = np.array(matrix["entries"], dtype=np.float64).reshape(-1, 3)
    edges, nodes = np.array(row["edges"], dtype=np.int64).reshape(-1, 2), np.array(row["nodes"], dtype=np.int64)
    carried: Ints = entries[:, 1::-1].astype(np.int64)
    numbers = np.array([count, 1])  # of an edge
    idle = edges[~np.isin(edges @ numbers, carried @ numbers)]
    weights = np.append(entries[:, 2], np.zeros(len(idle)))
    pairs = np.concatenate([carried, idle])
    named = np.concatenate([pairs.ravel(), nodes])
    if ((named < 0) | (named >= count)).any():
        raise ValueError("nodes that do not exist")
    name, working = str(topology.get("name", "auto")), np.isin(np.arange(count), nodes)
    return Net(name, count, pairs, weights, bool(row["directed"]), working, int(row["round"]))


def graph_pictures(groups: Sequence[Group], metric: str) -> list[Picture]:
    """The last graphs of up to MAX_PICTURES settings without a server (first seed) with at most MOST nodes.

    metric: its values at the nodes are the colours if they were measured, else those of the first metric in COLOURED.
    """
    graphs = [(group, graph) for group in groups if (graph := last_graph(group.runs[0])) is not None]
    drawn = [(group, graph) for group, graph in graphs if graph.count <= MOST]
    pictures = []
    for k, (group, graph) in enumerate(drawn[:MAX_PICTURES], 1):
        run, count = group.runs[0], graph.count
        away = count - np.count_nonzero(graph.working)
        shade = _shade(run, count, metric)
        caption = f"Graph of {group.label if len(groups) > 1 else display(group.method)}, seed {run.seed}"
        caption += f"{left_out(k, len(drawn))}, round {graph.round}: {count} nodes on {graph.name}"
        caption += "; eval.nodes=true gives colours." if shade is None else f", colour: {shade.label}."
        if away:
            caption += f" Hollow: {away} nodes away in this round; dotted: edges that carried nothing."
        name = f"graph_{k}" if len(drawn) > 1 else "graph"
        pictures.append(Picture(name, caption, coloured_figure(graph, shade)))
    return pictures


def _shade(run: RunRecord, count: int, metric: str) -> Shade | None:
    """The colours of the nodes, by the last values of a metric at each of them; None if none was measured."""
    for name in (metric.rpartition("/")[2], *COLOURED, *run.nodes):
        values = np.array([run.nodes.get(name, {}).get(node, np.nan) for node in range(count)])
        if np.isfinite(values).any():
            key = OF_NODES + name
            return Shade(values, axis_name(key), direction(key, run.directions) == "max", is_percent(key))
    return None
