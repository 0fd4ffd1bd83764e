"""Figures of participation: raster of clients and rounds, and frequencies of clients.

They are drawn from the rows of a `participation.jsonl` and show the clients that were really sampled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from raylfl.core.arrays import Floats, Ints
from raylfl.report.style import INK, MUTED, PALETTE, Drawing, rc

IDLE, LOST, RECEIVED = 0, 1, 2  # entries of `states`
_RECEIVED, _LOST = PALETTE[0], PALETTE[1]
# of a legend in one line above the axes, where it hides no data
ABOVE: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.005, 0.995), "borderaxespad": 0.2}
ABOVE |= {"ncols": 4, "fontsize": 7.5, "columnspacing": 0.9, "handletextpad": 0.4}
MOST_NAMES = 24  # clients whose names fit beside the raster


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


def participation_figure(
    rows: Sequence[dict[str, Any]],
    count: int,
    nominal: Floats | None = None,
    title: str = "",
    names: Sequence[str] | None = None,
) -> Figure:
    """A figure of the raster and the frequencies, from rows of a participation.jsonl.

    nominal: the expected draws of each of the N = count clients per round [N], if known (`Planner.expected_draws`).
    names: names of the clients, for up to MOST_NAMES clients; None: 0, 1, ...
    """
    with rc():
        figure = Drawing(figsize=(7.2, 5.4), dpi=200, layout="constrained")
        raster, frequency = figure.subplots(2, height_ratios=[1.15, 1])
        _raster(raster, states(rows, count), int(rows[0]["round"]) if rows else 0)
        _frequency(frequency, rows, count, nominal)
        if names is not None and len(names) == count <= MOST_NAMES:
            raster.set_yticks(np.arange(count), names, fontsize=6)
            if nominal is None:
                frequency.set_xticks(np.arange(count), names, rotation=90, fontsize=6)
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
    ax.legend(handles=handles, handlelength=1, handleheight=1, **ABOVE)


def _frequency(ax: Axes, rows: Sequence[dict[str, Any]], count: int, nominal: Floats | None) -> None:
    """Draws the frequency of each client, and a band of +-2 standard deviations of a mean over independent rounds.

    If clients scatter more widely, rounds depend on each other (as in Markov participation), or the draws are wrong.
    """
    seen, place = frequencies(rows, count), np.arange(count)
    size = float(np.clip(600 / max(count, 1), 2, 14))
    dots: dict[str, Any] = {"s": size, "color": _RECEIVED, "linewidths": 0, "zorder": 3, "label": "seen"}
    dots |= {"alpha": 0.9 if count < 300 else 0.5, "clip_on": False}
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
        ax.legend(handlelength=1, markerscale=4 / size**0.5, **ABOVE)
    ax.set_xlim(-0.5 - 0.01 * count, count - 0.5 + 0.01 * count)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.set_ylim(0, max(ax.get_ylim()[1], 1e-3))


def _most(rows: Sequence[dict[str, Any]]) -> float:
    """The most draws of one client in a round: 1, or the mean number of all draws if a client was drawn twice."""
    repeated = any(max(row["draws"], default=1) > 1 for row in rows)
    return float(np.mean([sum(row["draws"]) for row in rows])) if repeated else 1.0
