"""Figures of a partition: samples of each class at each client.

counts [N, K]: the number of samples of class c at client i, for N clients and K classes
(`raylfl.heterogeneity.partition.stats.class_counts`); classes: the K names of classes, by default 0..K-1. With more
than MAX_BUBBLES clients or classes, a heat-map replaces the bubble plot. With more than MAX_BUBBLES clients, clients
are sorted by their most frequent class; with more than MAX_COLUMNS clients, only every k-th one is drawn. The label of
the client axis then says how clients are sorted and selected.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from raylfl.core.arrays import Floats, Ints
from raylfl.report.style import INK, PALETTE, Drawing, rc

MAX_BUBBLES = 60  # columns or rows; with more, bubbles would be dots
MAX_COLUMNS = 600  # with more, columns would be thinner than a printed dot
_TEN = (*PALETTE, "#8a9a2e", "#a97b50")  # olive and brown added: most data sets have ten classes
HEAT = LinearSegmentedColormap.from_list("heat", [to_rgba(PALETTE[0], alpha) for alpha in (0.0, 1.0)])
# from transparent, so that an empty cell has the colour of the page, light or dark


def bubble(ax: Axes, counts: Ints, classes: Sequence[Any] | None = None) -> None:
    """Draws samples as bubbles of proportional area with a key of sizes; for more than MAX_BUBBLES a heat-map."""
    clients, rows = counts.shape
    if max(clients, rows) > MAX_BUBBLES:
        heat(ax, counts, classes)
        return
    largest = max(int(counts.max()), 1)
    nice = _round_down(largest)
    i, c = np.nonzero(counts)
    _circles(ax, counts, np.sqrt(counts[i, c] / largest), np.column_stack([i, c]), class_colors(rows)[c])
    _size_key(ax, counts, [size for size in (nice, nice // 10)[:rows] if size])  # one row each
    label_axes(ax, counts, classes)
    ax.grid(True)


def heat(ax: Axes, counts: Ints, classes: Sequence[Any] | None = None) -> None:
    """Draws samples as a heat-map; shades scale with the square root of the number."""
    norm = PowerNorm(0.5, vmin=0, vmax=max(int(counts.max()), 1))
    cells = counts[columns(counts)].T
    image = ax.imshow(cells, cmap=HEAT, norm=norm, origin="lower", aspect="auto", interpolation="nearest")
    beside = ax.inset_axes((1.0 + 0.08 / _inches(ax)[0], 0.0, 0.1 / _inches(ax)[0], 1.0))
    bar = ax.figure.colorbar(image, cax=beside, ticks=MaxNLocator(nbins=4, integer=True), label="samples")
    bar.outline.set_visible(False)
    label_axes(ax, counts, classes)
    ax.grid(False)


def stacked(ax: Axes, counts: Ints, classes: Sequence[Any] | None = None) -> None:
    """Draws one stacked bar per client: its samples of each class."""
    order = columns(counts)
    tops = np.cumsum(counts[order], axis=1)
    names, colors = _names(counts, classes), class_colors(counts.shape[1])
    gap = 0.07 if len(order) <= MAX_BUBBLES else 0.0
    edges = np.arange(len(order))[:, None] + np.array([-0.5 + gap, 0.5 - gap])
    spaces = np.full((len(order), 1), math.nan)
    for c, color in enumerate(colors):
        high = np.hstack([tops[:, [c]], spaces]).ravel()[:-1]
        low = np.hstack([tops[:, [c]] - counts[order][:, [c]], spaces]).ravel()[:-1]
        # one shape for all bars of a class: N K single shapes would take seconds
        ax.stairs(high, edges.ravel(), baseline=low, fill=True, color=color, linewidth=0)
    _class_key(ax, names, colors)
    _label_clients(ax, counts)
    ax.set_ylim(0, 1.04 * max(int(tops[:, -1].max()), 1))
    ax.set_ylabel("samples")
    ax.grid(axis="x", visible=False)


def figure(
    counts: Ints, classes: Sequence[Any] | None = None, title: str = "", names: Sequence[str] | None = None
) -> Figure:
    """A figure of a partition: bubbles (or a heat-map) above and stacked bars below, on one client axis.

    names: names of the clients, for up to MAX_BUBBLES clients; None: 0, 1, ...
    """
    clients, rows = counts.shape
    width = min(max(1.7 + 0.25 * clients, 5.0), 9.5)
    cell = (width - 1.5) / min(clients, MAX_BUBBLES)
    height = min(max(min(cell, 0.3) * rows, 1.0), 4.5)
    with rc():
        drawn = Drawing(figsize=(width, height + 2.6), dpi=200, layout="constrained")
        above, below = drawn.subplots(2, 1, sharex=True, height_ratios=[height, 1.7])
        bubble(above, counts, classes)
        stacked(below, counts, classes)
        above.set_xlabel("")
        above.tick_params(axis="x", labelbottom=False)
        if names is not None and len(names) == clients <= MAX_BUBBLES:
            below.set_xticks(np.arange(clients), names, rotation=90)
        if title:
            drawn.suptitle(title, x=0.012, ha="left", fontsize=11, fontweight="bold")
    return drawn


def columns(counts: Ints) -> Ints:
    """The ids of the drawn clients in the order of the axis (see the module)."""
    if len(counts) <= MAX_BUBBLES:
        return np.arange(len(counts))
    order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
    return order[:: -(-len(order) // MAX_COLUMNS)]


def class_colors(count: int) -> Floats:
    """RGBA colours [count, 4] of `count` classes, the same in every panel; more than ten are from one colour map."""
    if count <= len(_TEN):
        return np.array([to_rgba(color) for color in _TEN[:count]])
    return matplotlib.colormaps["turbo"](np.linspace(0.04, 0.96, count))


def _inches(ax: Axes) -> Floats:
    return np.array(ax.bbox.size) / ax.figure.dpi


def _circles(ax: Axes, counts: Ints, diameters: Floats, centres: Floats, colors: Any, **options: Any) -> None:
    """Draws circles around the centres [C, 2], (client, class) unless `options` has another `offset_transform`.

    diameters: [C], in units of 0.94 of the shorter side of a cell, or of 0.36 inches if that is less.
    """
    wide, tall = _inches(ax) / counts.shape
    side: Literal["x", "y"] = "x" if wide < tall else "y"
    size, angles = min(0.94, 0.36 / min(wide, tall)) * diameters, np.zeros_like(diameters)
    how = {"offsets": centres, "offset_transform": ax.transData, "linewidths": 0} | options
    ax.add_collection(EllipseCollection(size, size, angles, units=side, facecolors=colors, **how), autolim=False)


def _class_key(ax: Axes, names: Sequence[str], colors: Floats) -> None:
    """Draws the key of class colours beside the axes; of more than 20 classes eight examples."""
    few = len(names) if len(names) <= 2 * len(_TEN) else 8
    some = np.linspace(0, len(names) - 1, few).round().astype(int)
    handles = [Patch(facecolor=colors[c], label=names[c]) for c in some[::-1]]
    title = "class" if few == len(names) else "class, for example"
    look: dict[str, Any] = {"handlelength": 0.9, "handleheight": 0.9, "labelspacing": 0.25, "fontsize": 7}
    look |= {"title": title, "title_fontsize": 7, "alignment": "left", "ncols": 1 + (few > 10)}
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0.0, **look)


def _size_key(ax: Axes, counts: Ints, sizes: Sequence[int]) -> None:
    points = ax.figure.dpi_scale_trans
    beside = blended_transform_factory(ax.transAxes, ax.transData)
    top = counts.shape[1] - 1  # its centre; the axes end 0.6 above
    centres = np.array([[1.0, top - place] for place in range(len(sizes))])
    diameters = np.sqrt(np.array(sizes) / max(int(counts.max()), 1))
    shifted = beside + ScaledTranslation(14 / 72, 0, points)
    line = {"edgecolors": INK, "linewidths": 0.7, "clip_on": False}
    _circles(ax, counts, diameters, centres, "none", offset_transform=shifted, **line)
    over = beside + ScaledTranslation(5 / 72, 2 / 72, points)
    ax.text(1.0, top + 0.5, "samples", transform=over, va="bottom", fontsize=7)
    after = beside + ScaledTranslation(29 / 72, 0, points)
    for (x, y), size in zip(centres, sizes, strict=True):
        ax.text(x, y, f"{size:,}", transform=after, va="center", fontsize=7)


def _round_down(value: int) -> int:
    """The largest of 1, 2, 5, 10, 20, ... that is at most `value`."""
    scale: int = 10 ** (len(str(value)) - 1)
    return next(step * scale for step in (5, 2, 1) if step * scale <= value)


def label_axes(ax: Axes, counts: Ints, classes: Sequence[Any] | None) -> None:
    """Labels both axes of a panel with clients on the x axis and classes on the y axis."""
    rows, names = counts.shape[1], _names(counts, classes)
    _label_clients(ax, counts)
    ax.set(ylabel="class", ylim=(-0.6, rows - 0.4))
    if rows <= 2 * len(_TEN):
        ax.set_yticks(np.arange(rows), names)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: names[int(y)] if 0 <= y < rows else ""))


def _label_clients(ax: Axes, counts: Ints) -> None:
    shown, clients = len(columns(counts)), len(counts)
    ax.set_xlim(-0.6, shown - 0.4)
    if clients <= MAX_BUBBLES:
        ax.set_xlabel("client")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=min(clients, 32) + 1, steps=[1, 2, 5, 10]))
        return
    thinned = f"every {-(-clients // MAX_COLUMNS)}. of " if shown < clients else ""
    ax.set(xlabel=f"{thinned}{clients:,} clients, sorted by most frequent class", xticks=[])


def _names(counts: Ints, classes: Sequence[Any] | None) -> list[str]:
    return [str(name) for name in (range(counts.shape[1]) if classes is None else classes)]
