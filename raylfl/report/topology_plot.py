"""The figure of a graph: its nodes, and its edges with the weights of their matrix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from raylfl.core.population import Floats
from raylfl.report.style import INK, MUTED, PALETTE, PAPER, Drawing, rc

MOST = 200  # nodes that a figure shows
NAMED = 40  # nodes up to which their numbers are written
WEIGHED = 14  # edges up to which their weights are written
SPREAD = ("grid", "torus", "hypercube", "erdos_renyi", "random_regular", "file", "recorded")  # not drawn on a circle


def topology_figure(matrix: Floats, name: str, directed: bool, title: str, said: Mapping[str, object]) -> Figure:
    """The graph of a mixing matrix [N, N]; an edge is the wider, the larger its weight.

    said: numbers of the graph, written under the title.
    """
    with rc():
        figure = Drawing(figsize=(5.2, 5.6), layout="constrained")
        ax = figure.subplots()
        figure.get_layout_engine().set(h_pad=0.12)  # type: ignore[union-attr, call-arg]
        ax.set_title(title, loc="left", pad=24)
        line = ", ".join(f"{key} {f'{v:.3g}' if isinstance(v, float) else v}" for key, v in said.items())
        ax.text(0, 1.015, line, transform=ax.transAxes, color=MUTED, fontsize="small", va="bottom")
        _draw(ax, matrix, places(matrix, name), directed)
        ax.set_aspect("equal")
        ax.margins(0.08)
        ax.axis("off")
    return figure


def places(matrix: Floats, name: str) -> Floats:
    """The position of each node [N, 2]: on a circle, node 0 at the top; a star's centre in its middle; or spread."""
    import networkx as nx

    count = len(matrix)
    if name in SPREAD and count > 2:
        graph = nx.from_numpy_array((matrix + matrix.T > 0).astype(float) - np.eye(count) * (np.diag(matrix) > 0))
        if nx.is_connected(graph):
            found = nx.kamada_kawai_layout(graph)
            return np.array([found[node] for node in range(count)])
    ring = count - 1 if name == "star" else count
    angle = np.pi / 2 - 2 * np.pi * np.arange(ring) / max(ring, 1)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    return np.concatenate([np.zeros((1, 2)), circle]) if name == "star" else circle


def _draw(ax: Axes, matrix: Floats, at: Floats, directed: bool) -> None:
    targets, sources = np.nonzero(matrix - np.diag(np.diag(matrix)))
    weights = matrix[targets, sources]
    thick = 2.0 if len(weights) <= 2 * NAMED else 0.8
    widths = 0.4 + thick * weights / max(float(weights.max(initial=0)), 1e-12)
    if directed and len(sources) <= 10 * MOST:
        for a, b, width in zip(sources, targets, widths, strict=True):
            style = f"-|>,head_length={2 + width},head_width={1 + width / 2}"
            arrow = FancyArrowPatch(at[a], at[b], arrowstyle=style, shrinkA=9, shrinkB=9, lw=width, color=PALETTE[0])
            ax.add_patch(arrow).set_alpha(0.6)
    else:
        ends = list(at[np.stack([sources, targets], axis=1)])
        lines = LineCollection(ends, colors=PALETTE[0], linewidths=widths, alpha=0.5)
        ax.add_collection(lines)
    shown = (sources < targets) | directed
    if shown.sum() <= WEIGHED:
        for a, b, weight in zip(sources[shown], targets[shown], weights[shown], strict=True):
            x, y = 0.55 * at[a] + 0.45 * at[b]
            box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8}
            ax.text(x, y, f"{weight:.2g}", color=INK, ha="center", va="center", fontsize="small", bbox=box)
    size = 260 if len(at) <= NAMED else 40
    ax.scatter(at[:, 0], at[:, 1], s=size, color=PAPER, edgecolors=PALETTE[0], linewidths=1.2, zorder=3)
    if len(at) <= NAMED:
        for node, (x, y) in enumerate(at):
            ax.text(x, y, str(node), color=INK, ha="center", va="center", fontsize="small", zorder=4)
