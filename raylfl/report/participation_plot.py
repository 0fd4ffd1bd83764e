"""Figures of participation: raster of clients and rounds, frequencies of clients, gaps between participations.

They are drawn from the rows of a `participation.jsonl` and show the clients that were really sampled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from raylfl.core.arrays import Floats, Ints
from raylfl.report.style import INK, MUTED, PALETTE, Drawing, rc

IDLE, LOST, RECEIVED = 0, 1, 2  # entries of `states`
_RECEIVED, _LOST = PALETTE[0], PALETTE[1]
MOST_NAMES = 24  # clients whose names fit beside the raster
_LINEAR_GAPS = 40  # longest gap up to which each gap length has its own bar


def states(rows: Sequence[dict[str, Any]], count: int) -> Ints:
    """The state of each of N = count clients in each of R rows [N, R]: IDLE, LOST (its upload is lost) or RECEIVED."""
    table = np.full((count, len(rows)), IDLE)
    for place, row in enumerate(rows):
        table[row["cohort"], place] = np.where(row["received"], RECEIVED, LOST)
    return table


def frequencies(rows: Sequence[dict[str, Any]], count: int) -> Floats:
    """The mean number of draws per round of each of N = count clients, float64 [N], over the rounds in `rows`."""
    total = np.zeros(count)
    for row in rows:
        total[row["cohort"]] += row["draws"]
    return total / max(len(rows), 1)


def gaps(table: Ints) -> tuple[Ints, Ints]:
    """The gaps in `states`, at least 1: (rounds from a participation to the client's next one, client ids)."""
    clients, rounds = np.nonzero(table != IDLE)  # sorted by client, then round
    same = clients[1:] == clients[:-1]
    return np.diff(rounds)[same], clients[1:][same]


def memoryless(table: Ints, clients: Ints, lengths: Ints) -> Floats:
    """The expected share of each of L gap lengths if participation were independent from round to round [L].

    For length g it is sum_i c_i f_i (1 - f_i)^(g-1) / sum_i c_i; f_i: the share of rounds with client i, c_i: its gaps.
    """
    weight = np.bincount(clients, minlength=len(table)) / len(clients)
    f = (table != IDLE).mean(axis=1)
    used = weight > 0
    share: Floats = (1 - f[used]) ** (lengths[:, None] - 1) @ (weight * f)[used]
    return share


def participation_figure(
    rows: Sequence[dict[str, Any]],
    count: int,
    nominal: Floats | None = None,
    title: str = "",
    names: Sequence[str] | None = None,
) -> Figure:
    """A figure of 7.2 x 5.4 inches with the panels raster, frequencies and gaps, from rows of a participation.jsonl.

    nominal: the expected draws of each of the N = count clients per round [N], if known (`Participation.marginals`).
    names: names of the clients, for up to MOST_NAMES clients; None: 0, 1, ...
    """
    with rc():
        figure = Drawing(figsize=(7.2, 5.4), dpi=200, layout="constrained")
        axes = figure.subplot_mosaic([["raster", "raster"], ["frequency", "gaps"]], height_ratios=[1.15, 1])
        table = states(rows, count)
        _raster(axes["raster"], table, int(rows[0]["round"]) if rows else 0)
        _frequency(axes["frequency"], rows, count, nominal)
        _gaps(axes["gaps"], table)
        if names is not None and len(names) == count <= MOST_NAMES:
            axes["raster"].set_yticks(np.arange(count), names, fontsize=6)
            if nominal is None:
                axes["frequency"].set_xticks(np.arange(count), names, rotation=90, fontsize=6)
        if title:
            figure.suptitle(title, x=0.012, ha="left", fontsize=11, fontweight="bold")
        return figure


def _raster(ax: Axes, table: Ints, first: int) -> None:
    count, rounds = table.shape
    colors = np.array([to_rgb("white"), to_rgb(_LOST), to_rgb(_RECEIVED)])
    extent = (first - 0.5, first + rounds - 0.5, -0.5, count - 0.5)
    ax.imshow(colors[table], origin="lower", aspect="auto", interpolation="antialiased", extent=extent)
    ax.set(xlabel="round", ylabel="client")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.grid(False)
    sampled, lost = int((table != IDLE).sum()), int((table == LOST).sum())
    ax.set_title(f"Sampled: {sampled / max(rounds, 1):.3g} of {count} clients per round")
    handles = [Patch(facecolor=_RECEIVED, label="received")]
    if lost:
        handles.append(Patch(facecolor=_LOST, label=f"lost ({lost / sampled:.0%})"))
    handles.append(Patch(facecolor="white", edgecolor=MUTED, linewidth=0.7, label="idle"))
    _legend_beside_title(ax, handles=handles, handlelength=1, handleheight=1)


def _legend_beside_title(ax: Axes, **options: Any) -> None:
    """Draws a one-line legend above the axes, where it hides no data."""
    spot: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.005, 0.995), "borderaxespad": 0.2}
    ax.legend(ncols=4, fontsize=7.5, columnspacing=0.9, handletextpad=0.4, **spot, **options)


def _frequency(ax: Axes, rows: Sequence[dict[str, Any]], count: int, nominal: Floats | None) -> None:
    """Draws the frequency of each client, and a band of +-2 standard deviations of a mean over independent rounds.

    If clients scatter more widely, rounds depend on each other (as in Markov participation), or the draws are wrong.
    """
    seen, place = frequencies(rows, count), np.arange(count)
    size = float(np.clip(600 / max(count, 1), 2, 14))
    dots: dict[str, Any] = {"s": size, "color": _RECEIVED, "linewidths": 0, "zorder": 3, "label": "seen"}
    dots["alpha"] = 0.9 if count < 300 else 0.5
    ax.set_title("Frequency")
    ax.set_ylabel("draws per round" if _most(rows) != 1 else "share of rounds")
    if nominal is None:
        ax.scatter(place, seen, **dots)
        ax.set_xlabel("client")
    else:
        order = np.argsort(nominal, kind="stable")
        mean = np.asarray(nominal, dtype=np.float64)[order]
        spread = 2 * np.sqrt(mean * np.maximum(1 - mean / _most(rows), 0) / max(len(rows), 1))
        edges = np.arange(count + 1) - 0.5  # one step per client
        band: dict[str, Any] = {"fill": True, "color": MUTED, "alpha": 0.22, "linewidth": 0, "label": "±2 sd"}
        ax.stairs(mean + spread, edges, baseline=np.maximum(mean - spread, 0), **band)
        ax.stairs(mean, edges, baseline=None, color=INK, linewidth=1.1, label="nominal")
        ax.scatter(place, seen[order], **dots)
        ax.set_xlabel("clients, by nominal frequency")
        _legend_beside_title(ax, handlelength=1, markerscale=4 / size**0.5)
    ax.set_xlim(-0.5 - 0.01 * count, count - 0.5 + 0.01 * count)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.set_ylim(0, max(ax.get_ylim()[1], 1e-3))


def _most(rows: Sequence[dict[str, Any]]) -> float:
    """The most draws of one client in a round: 1, or the mean number of all draws if a client was drawn twice."""
    repeated = any(max(row["draws"], default=1) > 1 for row in rows)
    return float(np.mean([sum(row["draws"]) for row in rows])) if repeated else 1.0


def _gaps(ax: Axes, table: Ints) -> None:
    """Draws the histogram of gap lengths, per round of a bin's width, and its expectation (`memoryless`)."""
    lengths, clients = gaps(table)
    never = int((table == IDLE).all(axis=1).sum())
    ax.set_title("Gaps between participations" + (f" ({never} never sampled)" if never else ""))
    ax.set(xlabel="rounds from one to the next", ylabel="share of gaps")
    if not len(lengths):
        ax.text(0.5, 0.5, "no client took part twice", transform=ax.transAxes, ha="center", color=MUTED)
        ax.grid(False)
        return
    longest = int(lengths.max())
    edges = np.arange(1, longest + 2)
    if longest > _LINEAR_GAPS:
        edges = np.unique(np.round(np.geomspace(1, longest + 1, 25)).astype(np.int64))
    share = np.histogram(lengths, edges)[0] / (len(lengths) * np.diff(edges))
    ax.bar(edges[:-1] - 0.5, share, np.diff(edges), align="edge", color=_RECEIVED, edgecolor="white", linewidth=0.4)
    g = np.unique(np.round(np.geomspace(1, longest, 200)).astype(np.int64))
    expected = memoryless(table, clients, g)
    ax.plot(g, expected, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), label="if memoryless")
    ax.set_yscale("log")
    ax.set_ylim(share[share > 0].min() * 0.5, max(share.max(), expected.max()) * 2)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if longest > _LINEAR_GAPS:
        ax.set_xscale("log")
        ax.set_ylabel("share of gaps, per round")
        ax.set_xlim(0.75, (longest + 1) * 1.05)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda gap, _: f"{gap:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda part, _: f"{100 * part:g} %"))
    ax.minorticks_off()
    ax.legend(loc="upper right", borderaxespad=0.1)
