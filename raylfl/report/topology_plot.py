"""Figures of a graph: nodes, coloured by a value if one is given, and edges, wider for larger weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.report.curves import log_axis
from raylfl.report.style import INK, MUTED, PALETTE, PAPER, Drawing, rc

MOST = 200  # largest number of nodes in a figure; more would be too close to each other
NAMED = 40  # largest number of nodes that are numbered
WEIGHED = 14  # largest number of edges whose weights are written
ARROWS = 2000  # largest number of edges that are drawn as arrows
SPREAD = ("grid", "torus", "hypercube", "erdos_renyi", "random_regular", "file", "recorded")  # not drawn on a circle
CLEAR = 500  # opacity of an edge times number of edges: many edges do not hide each other
FAR = 20  # ratio of the largest to the smallest value above which the colour scale is logarithmic


@dataclass(frozen=True)
class Net:
    """A graph of N = `count` nodes with E edges, of a round.

    name: the topology's name, which determines the positions of nodes. pairs: (from, to) [E, 2]; an undirected edge may
    occur in one direction or in both. weights: the mixing matrix's entry for each edge [E]; 0 if no message used the
    edge. working: whether each node worked in the round, bool [N]; others are hollow.
    """

    name: str
    count: int
    pairs: Ints
    weights: Floats
    directed: bool
    working: Bools
    round: int = 0


@dataclass(frozen=True)
class Shade:
    """Values of the N nodes, shown as colours; better values are lighter.

    values: [N], nan for unknown ones, at least one known. label: the label of the colour bar. higher: whether larger
    values are better. percent: whether values are shown in per cent.
    """

    values: Floats
    label: str
    higher: bool
    percent: bool = False

    def scale(self) -> ScalarMappable:
        """The map from values to colours, logarithmic over a range of positive values beyond FAR (not in per cent)."""
        scaled = self.values * (100 if self.percent else 1)
        found = scaled[np.isfinite(scaled)]
        low, high = float(found.min()), float(found.max())
        if low == high:
            low, high = low - 0.05 * abs(low or 1), high + 0.05 * abs(high or 1)
        far = not self.percent and low > 0 and high > FAR * low
        colors = matplotlib.colormaps["cividis" if self.higher else "cividis_r"]
        scale = ScalarMappable(LogNorm(low, high) if far else Normalize(low, high), colors)
        scale.set_array(scaled)
        return scale


def topology_figure(matrix: Floats, name: str, directed: bool, title: str, said: Mapping[str, object]) -> Figure:
    """A figure of the graph of a mixing matrix [N, N], with widths by weights and the numbers `said` under the title.

    It has an edge from j to i for each nonzero matrix[i, j], i != j. name: the topology's name.
    """
    targets, sources = np.nonzero(matrix - np.diag(np.diag(matrix)))
    idle = np.zeros(len(matrix), dtype=bool)
    net = Net(name, len(matrix), np.column_stack([sources, targets]), matrix[targets, sources], directed, idle)
    with rc():
        figure = Drawing(figsize=(5.2, 5.6), layout="constrained")
        ax = figure.subplots()
        figure.get_layout_engine().set(h_pad=0.12)  # type: ignore[union-attr, call-arg]
        ax.set_title(title, loc="left", pad=24)
        line = ", ".join(f"{key} {f'{v:.3g}' if isinstance(v, float) else v}" for key, v in said.items())
        ax.text(0, 1.015, line, transform=ax.transAxes, color=MUTED, fontsize="small", va="bottom")
        _draw(ax, net)
    return figure


def coloured_figure(net: Net, shade: Shade | None) -> Figure:
    """A figure of a graph, with nodes coloured by their values; nodes that did not work are hollow."""
    with rc():
        figure = Drawing(figsize=(4.6, 5.2), dpi=200, layout="constrained")
        ax = figure.subplots()
        if shade is None:
            _draw(ax, net)
            return figure
        scale = shade.scale()
        colors = scale.to_rgba(np.ma.masked_invalid(np.asarray(scale.get_array())))
        _draw(ax, net, colors)
        bar = figure.colorbar(scale, ax=ax, label=shade.label, location="bottom", shrink=0.7, aspect=26, pad=0.02)
        bar.outline.set_visible(False)
        if isinstance(scale.norm, LogNorm):
            log_axis(bar.ax.xaxis, *scale.get_clim())
    return figure


def places(net: Net) -> Floats:
    """The position of each of N nodes [N, 2]: on a circle with node 0 at the top, or computed from the edges.

    A star has node 0 in the middle of the circle.
    """
    import networkx as nx

    count, name = net.count, net.name
    if name in SPREAD and count > 2:
        graph = nx.empty_graph(count)
        graph.add_edges_from(net.pairs.tolist())
        if nx.is_connected(graph):
            found = nx.kamada_kawai_layout(graph)
            return np.array([found[node] for node in range(count)])
    ring = count - 1 if name == "star" else count
    angle = np.pi / 2 - 2 * np.pi * np.arange(ring) / max(ring, 1)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    return np.concatenate([np.zeros((1, 2)), circle]) if name == "star" else circle


def _draw(ax: Axes, net: Net, colors: Floats | None = None) -> None:
    at = places(net)
    _draw_edges(ax, net, at)
    _draw_nodes(ax, at, colors, net.working)
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.axis("off")


def _draw_edges(ax: Axes, net: Net, at: Floats) -> None:
    (sources, targets), weights = net.pairs.T, net.weights
    many = len(weights) > 2 * NAMED
    if not (weights > 0).all():  # edges that carry nothing in this round
        idle = list(at[net.pairs[weights == 0]])
        ax.add_collection(LineCollection(idle, colors=MUTED, linewidths=0.4, linestyles="dotted", alpha=0.6))
    widths = 0.4 + (0.8 if many else 2.0) * weights / max(float(weights.max(initial=0)), 1e-12)
    carries = np.flatnonzero(weights > 0)
    if net.directed and len(sources) <= ARROWS:
        end = 9 if net.count <= NAMED else 4
        for a, b, width in zip(sources[carries], targets[carries], widths[carries], strict=True):
            style = f"-|>,head_length={2 + width},head_width={1 + width / 2}"
            arrow = FancyArrowPatch(at[a], at[b], arrowstyle=style, shrinkA=end, shrinkB=end, lw=width)
            arrow.set(color=PALETTE[0], alpha=0.6 if len(carries) <= 4 * NAMED else 0.25)
            ax.add_patch(arrow)
    else:
        clear = min(max(CLEAR / max(len(carries), 1), 0.04), 0.5)
        lines = LineCollection(list(at[net.pairs[carries]]), colors=PALETTE[0], linewidths=widths[carries], alpha=clear)
        ax.add_collection(lines)
    shown = carries[(sources[carries] < targets[carries]) | net.directed]
    if len(shown) <= WEIGHED and net.count <= NAMED:
        for a, b, weight in zip(sources[shown], targets[shown], weights[shown], strict=True):
            x, y = 0.55 * at[a] + 0.45 * at[b]
            box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
            ax.text(x, y, f"{weight:.2g}", color=INK, ha="center", va="center", fontsize="small", bbox=box)


def _draw_nodes(ax: Axes, at: Floats, colors: Floats | None, working: Bools) -> None:
    """Draws nodes in their colours, blue if None; nodes that did not work are white with an outline."""
    count = len(at)
    size = 260 if count <= NAMED else 40
    edges = np.repeat(to_rgba_array(PALETTE[0]), count, axis=0) if colors is None else colors
    faces = np.repeat(to_rgba_array(PAPER), count, axis=0)
    faces[working] = edges[working]
    ax.scatter(at[:, 0], at[:, 1], s=size, color=faces, edgecolors=list(edges), linewidths=1.2, zorder=3)
    if count <= NAMED:
        dark = faces[:, :3] @ [0.299, 0.587, 0.114] < 0.5
        for node, (x, y) in enumerate(at):
            ink = PAPER if dark[node] else INK
            ax.text(x, y, str(node), color=ink, ha="center", va="center", fontsize="small", zorder=4)
