"""Figures of clients in a report: partitions, participation, and graphs of methods without a server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.diagnostics.metric_names import OF_NODES, Better, direction
from raylfl.report import partition_plot
from raylfl.report.derived import scenario_keys, split
from raylfl.report.labels import display, method_of
from raylfl.report.participation_plot import participation_figure
from raylfl.report.runs import Group, RunRecord
from raylfl.report.tables import Column, ReportTable
from raylfl.report.topology_plot import MOST, Net, Shade, coloured_figure
from raylfl.report.wording import axis_name, is_percent, number
from raylfl.runtime.records.lines import last_row

MAX_PICTURES = 6  # largest number of figures of a kind on the page, for sweeps over many scenarios
RECORD = "topology.jsonl"
COLOURED = ("accuracy", "distance", "loss", "from_mean")  # metrics of nodes; the first measured one gives the colours
WORKED = "rounds at work"
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


@dataclass(frozen=True)
class LastGraph:
    """The graph of a run's last recorded round.

    name: the topology's name in the config. rows: its option `rows`, the number of rows of a grid; None if not set.
    working: whether each of the N nodes worked in that round, bool [N].
    """

    net: Net
    name: str
    rows: int | None
    round: int
    working: Bools


def graph_pictures(groups: Sequence[Group], metric: str) -> list[tuple[Picture | None, ReportTable]]:
    """A figure of the graph and a table of its nodes for up to MAX_PICTURES settings without a server (first seed).

    The figure is None for more than MOST nodes. metric: its values at the nodes are the colours if they were measured.
    """
    runs = [(group.label, group.runs[0]) for group in groups]
    found = [(label, run, graph) for label, run in runs if (graph := last_graph(run)) is not None]
    drawn = []
    for k, (label, run, graph) in enumerate(found[:MAX_PICTURES], 1):
        ending = f"_{k}" if len(found) > 1 else ""
        of = f" of {label if len(groups) > 1 else display(method_of(run.setting))}, seed {run.seed}"
        of += left_out(k, len(found))
        values = node_values(run, graph.net.count)
        shade = _shade(values, metric, run.directions)
        picture = None
        if graph.net.count <= MOST:
            figure = coloured_figure(graph.net, graph.name, graph.working, shade, graph.rows)
            picture = Picture(f"graph{ending}", _caption(of, graph, shade), figure)
        drawn.append((picture, _table(f"nodes{ending}", f"The nodes{of}.", run, graph, values)))
    return drawn


def last_graph(run: RunRecord) -> LastGraph | None:
    """The graph of a run's last recorded round; None without a readable record, and then a fault of the run."""
    path = run.path / RECORD
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        return _read(last_row(path) or {}, run)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        run.faults.append(f"{RECORD}: its last line cannot be read")
        return None


def _read(row: Mapping[str, Any], run: RunRecord) -> LastGraph:
    count, topology = run.clients, run.config.get("topology") or {}
    matrix = row.get("W") or row.get("R") or row["C"]
    entries = np.array(matrix["entries"], dtype=np.float64).reshape(-1, 3)
    edges, nodes = np.array(row["edges"], dtype=np.int64).reshape(-1, 2), np.array(row["nodes"], dtype=np.int64)
    carried: Ints = entries[:, 1::-1].astype(np.int64)
    numbers = np.array([count, 1])  # of an edge
    idle = edges[~np.isin(edges @ numbers, carried @ numbers)]
    weights = np.append(entries[:, 2], np.zeros(len(idle)))
    net = Net(count, np.concatenate([carried, idle]), weights, bool(row["directed"]))
    named = np.concatenate([net.pairs.ravel(), nodes])
    if ((named < 0) | (named >= count)).any():
        raise ValueError("nodes that do not exist")
    name, working = str(topology.get("name", "auto")), np.isin(np.arange(count), nodes)
    return LastGraph(net, name, topology.get("rows"), int(row["round"]), working)


def node_values(run: RunRecord, count: int) -> dict[str, Floats]:
    """The last values of each metric at all nodes [count], nan for none, and WORKED: the rounds of each node."""
    found = {name: np.array([own.get(node, np.nan) for node in range(count)]) for name, own in run.nodes.items()}
    worked = np.zeros(count)
    for row in run.participation:
        worked[np.array(row["cohort"], dtype=np.int64)[np.array(row["received"], dtype=bool)]] += 1
    return {**found, WORKED: worked}


def _shade(values: Mapping[str, Floats], metric: str, stated: Mapping[str, Better]) -> Shade:
    wanted = (metric.rpartition("/")[2], *COLOURED, *values)
    name = next(name for name in wanted if name in values and np.isfinite(values[name]).any())
    if name == WORKED:
        return Shade(values[name], WORKED, higher=True)
    key = OF_NODES + name
    return Shade(values[name], axis_name(key), direction(key, stated) == "max", is_percent(key))


def _caption(of: str, graph: LastGraph, shade: Shade) -> str:
    count, away = graph.net.count, int((~graph.working).sum())
    text = f"Graph{of}, round {graph.round}: {count} nodes on {graph.name}, colour: {shade.label}."
    if away:
        text += f" Hollow: {away} nodes away in this round; dotted: edges that carried nothing."
    if shade.label == WORKED:
        text += " With eval.nodes=true the colour is the accuracy of each node's model."
    return text


def _table(name: str, caption: str, run: RunRecord, graph: LastGraph, values: Mapping[str, Floats]) -> ReportTable:
    net = graph.net
    links = np.unique(net.pairs if net.directed else np.sort(net.pairs, axis=1), axis=0)
    degrees = {"sends to": links[:, 0], "receives from": links[:, 1]} if net.directed else {"degree": links.ravel()}
    columns: list[Column] = []
    cells: dict[str, list[Any]] = {}

    def add(key: str, of_nodes: Ints | Floats, head: str, show: Callable[[Any], str] = str) -> None:
        columns.append(Column(key, head, show, numeric=True))
        cells[key] = of_nodes.tolist()

    add("node", np.arange(net.count), "node")
    if run.partition_counts is not None and len(run.partition_counts[1]) == net.count:
        add("samples", run.partition_counts[1].sum(axis=1), "samples")
    for head, ends in degrees.items():
        add(head, np.bincount(ends, minlength=net.count), head)
    for key, each in values.items():
        if key == WORKED:
            add(key, each.astype(int), key)
        else:
            show = (lambda value: number(100 * value)) if is_percent(key) else number
            add(key, each, axis_name(OF_NODES + key), show)
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    return ReportTable(name, caption, columns, rows)
