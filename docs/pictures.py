"""The drawn pictures of the pages, in light and dark.

    python docs/pictures.py [NAME ...]

writes `docs/img/NAME.png` and `docs/img/NAME-dark.png`. `heterogeneity` is drawn from a run, the others from the code.
The pages name the light one; the site shows the one that fits the reader's theme (docs/site.py).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

IMAGES = Path(__file__).with_name("img")
DIGITS = plt.get_cmap("tab10")


@dataclass(frozen=True)
class Ink:
    """Colours of a theme: background, text, thin lines, fills of boxes, and three accents."""

    ground: str
    text: str
    line: str
    box: str
    server: str
    worker: str
    lost: str


LIGHT = Ink("#ffffff", "#222222", "#888888", "#f2f2f2", "#cfe3f7", "#fbe3c2", "#c0392b")
DARK = Ink("#1e2129", "#e8e8e8", "#8a8f99", "#2d313b", "#23466b", "#6b4a1c", "#ff7b6b")


def canvas(ink: Ink, width: float, height: float) -> tuple[Figure, Axes]:
    """An empty drawing area whose unit is a tenth of an inch."""
    figure, axes = plt.subplots(figsize=(width, height), facecolor=ink.ground)
    axes.set_position((0, 0, 1, 1))
    axes.set_xlim(0, 10 * width)
    axes.set_ylim(0, 10 * height)
    axes.axis("off")
    return figure, axes


def box(axes: Axes, ink: Ink, at: tuple[float, float], size: tuple[float, float], text: str, **style: Any) -> None:
    """A labelled box; at: its lower left corner."""
    fill, small, top = style.get("fill", ink.box), style.get("small", 8), style.get("top", False)
    shape = FancyBboxPatch(at, *size, boxstyle="round,pad=0,rounding_size=1", fc=fill, ec=ink.line, lw=0.8)
    axes.add_patch(shape)
    y = at[1] + size[1] - 1.3 if top else at[1] + size[1] / 2
    place = {"ha": "center", "va": "top" if top else "center", "color": ink.text, "fontsize": small}
    axes.text(at[0] + size[0] / 2, y, text, linespacing=1.3, **place)


def arrow(
    axes: Axes, ink: Ink, start: tuple[float, float], end: tuple[float, float], text: str = "", **style: Any
) -> None:
    """An arrow with a text beside its middle; dashed: what is lost."""
    lost = style.get("lost", False)
    line = {"arrowstyle": "-|>", "color": ink.lost if lost else ink.text, "lw": 1, "ls": "--" if lost else "-"}
    axes.annotate("", end, start, arrowprops={**line, "shrinkA": 0, "shrinkB": 0})
    middle = ((start[0] + end[0]) / 2 + style.get("dx", 0), (start[1] + end[1]) / 2 + style.get("dy", 0))
    axes.text(*middle, text, color=ink.text, fontsize=7.5, ha=style.get("ha", "left"), va="center")


def one_round(ink: Ink) -> Figure:
    """Server, worker processes, clients' shards, and what travels."""
    figure, axes = canvas(ink, 7.2, 4.3)
    box(
        axes,
        ink,
        (22, 34),
        (28, 7),
        "server: the model x and its state\n① draw   ⑤ combine   ⑥ commit, measure",
        fill=ink.server,
    )
    for k, (left, clients) in enumerate(((3, ("client 2", "client 7")), (39, ("client 3", "client 9")))):
        box(axes, ink, (left, 4), (30, 19), f"worker {k + 1}: a process, a CPU or GPU", fill=ink.worker, top=True)
        for j, name in enumerate(clients):
            corner = (left + 1.5 + 14 * j, 6)
            box(axes, ink, corner, (13, 12), f"{name}\nits samples, its state\n③ K local steps\nx ← x − η g", small=7)
    arrow(axes, ink, (27, 34), (15, 23.4), "② broadcast x [d]", dx=-17)
    arrow(axes, ink, (20, 23.4), (32, 34), "④ uploads, or their sum", dx=1.5, dy=-1.5)
    arrow(axes, ink, (44, 34), (54, 23.4), "②", dx=-3)
    arrow(axes, ink, (60, 23.4), (48, 34), "④ an upload may be lost", dx=2.5, dy=1.5, lost=True)
    axes.text(
        36,
        1.6,
        "a lost upload counts as traffic; the client keeps its state from before the round",
        color=ink.text,
        fontsize=8,
        ha="center",
    )
    return figure


def layers(ink: Ink) -> Figure:
    """Packages by layer: each imports from those below it."""
    rows = (
        ("cli, tune, execution, python, report, theory, testing", "what people touch"),
        ("runtime, experiment", "the round, workers, Ray, records; a run's parts"),
        ("config", "the only readers of OmegaConf nodes"),
        ("algorithms  |  heterogeneity  |  models  |  data", "the papers: torch and numpy"),
        ("core, replay, diagnostics, solvers", "contract, local solver, gradients, recorded steps"),
        ("components, errors, startup", "options and names, read without importing"),
    )
    figure, axes = canvas(ink, 7.2, 3.6)
    for k, (packages, about) in enumerate(reversed(rows)):
        box(axes, ink, (2, 2 + 5.6 * k), (38, 4.4), packages, fill=ink.server if k >= 3 else ink.worker, small=8)
        axes.text(42, 4.2 + 5.6 * k, about, color=ink.text, fontsize=8, va="center")
        if k:
            arrow(axes, ink, (21, 2 + 5.6 * k), (21, 0.9 + 5.6 * k), "")
    return figure


def placement(ink: Ink) -> Figure:
    """Clients on the workers of two nodes, shared and pinned."""
    figure, axes = canvas(ink, 7.2, 3.6)
    groups = {
        "shared": (("any client", "any client"), ("any client", "any client")),
        "pinned": (("clients 0, 4", "clients 1, 5"), ("clients 2, 6", "clients 3, 7")),
    }
    data = {"shared": "all samples, once per node", "pinned": "each worker: its clients' samples"}
    for row, (name, nodes) in enumerate(groups.items()):
        y = 19 - 17 * row
        axes.text(2, y + 7.5, f"placement\n{name}", color=ink.text, fontsize=9, va="center")
        for k, workers in enumerate(nodes):
            left = 16 + 28 * k
            box(axes, ink, (left, y), (26, 15), f"node {k + 1}: {data[name]}", top=True, small=7)
            for j, clients in enumerate(workers):
                box(axes, ink, (left + 1.5 + 12 * j, y + 1.5), (11, 9), f"worker\nGPU {j}\n{clients}", fill=ink.worker)
    return figure


def heterogeneity(ink: Ink, clients: int = 12, rounds: int = 40) -> Figure:
    """Strips of one run: each client's digits, and its rounds: received, lost, absent."""
    counts, lines = recorded(clients, rounds)
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.9), width_ratios=(1, 2.2), facecolor=ink.ground)
    for axes in (left, right):
        axes.set_facecolor(ink.ground)
        axes.tick_params(colors=ink.text, labelsize=7, length=2)
        axes.spines[:].set_visible(False)
        axes.set_ylim(clients - 0.4, -0.6)
        axes.set_yticks(range(clients))
    for client, of_digit in enumerate(counts):
        start = 0
        for digit, count in enumerate(of_digit):
            left.barh(client, count, left=start, height=0.75, color=DIGITS(digit), lw=0)
            if count > 14:
                left.text(start + count / 2, client, str(digit), fontsize=6, color="white", ha="center", va="center")
            start += count
    left.set_title("partition: digits of a client", fontsize=8, color=ink.text)
    left.set_xlabel("samples", fontsize=7, color=ink.text)
    left.set_ylabel("client", fontsize=7, color=ink.text)
    right.set_title("participation and link: trained and received ■, upload lost ✕", fontsize=8, color=ink.text)
    right.set_xlabel("round", fontsize=7, color=ink.text)
    for line in lines:
        for client, received in zip(line["cohort"], line["received"], strict=True):
            style = {"marker": "s", "color": "#3b7dbf"} if received else {"marker": "x", "color": ink.lost}
            right.plot(line["round"], client, ms=3.6, mew=1.1, ls="", **style)
    right.set_xlim(-1, rounds)
    figure.tight_layout(pad=0.6)
    return figure


def recorded(clients: int, rounds: int) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The counts of digits [clients][10], and the lines of participation.jsonl, of a run of `digits`."""
    import raylfl

    markov = "participation={name: markov, p_on: 0.12, p_off: 0.2}"
    link = ["link={name: bernoulli, q: 0.2}", "runtime.backend=local", "logging.report=false", "eval.every=0"]
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"rounds={rounds}", f"num_clients={clients}", f"logging.dir={folder}", markov, *link]
        run = raylfl.run("digits", settings, progress=False).run_dir
        counts = json.loads((run / "partition_counts.json").read_text())["counts"]
        lines = [json.loads(line) for line in (run / "participation.jsonl").read_text().splitlines()]
    return counts, lines


def graph_round(ink: Ink) -> Figure:
    """One round on a ring of six nodes: local work, messages, mixing; one node is absent."""
    figure, axes = canvas(ink, 7.2, 2.9)
    ring, absent = nx.cycle_graph(6), 3
    places = nx.circular_layout(ring, scale=7)
    titles = ("① working nodes: K local steps", "② messages along edges", "③ mix: x ← W x")
    for part, title in enumerate(titles):
        centre = (12 + 24 * part, 15)
        at = {node: (centre[0] + x, centre[1] + y) for node, (x, y) in places.items()}
        for one, other in ring.edges:
            dead = absent in (one, other)
            ls, width = (":", 0.8) if dead else ("-", 2.2 if part == 2 else 1.0)
            axes.plot(*zip(at[one], at[other], strict=True), color=ink.line, ls=ls, lw=width, zorder=1)
            if part == 1 and not dead:
                for start, end in ((one, other), (other, one)):
                    ends = [
                        tuple((1 - s) * a + s * b for a, b in zip(at[start], at[end], strict=True)) for s in (0.2, 0.48)
                    ]
                    arrow(axes, ink, *ends)
        for node, (x, y) in at.items():
            fill = ink.ground if node == absent else ink.worker
            axes.plot(x, y, "o", ms=19, mfc=fill, mec=ink.line, zorder=3)
            axes.text(x, y, f"$x_{node}$", color=ink.text, fontsize=7, ha="center", va="center", zorder=4)
            if part == 0 and node != absent:
                out = [c + 1.45 * (end - c) for c, end in zip(centre, (x, y), strict=True)]
                axes.text(*out, f"$-\\eta\\, g_{node}$", color=ink.text, fontsize=7, ha="center", va="center")
        axes.text(centre[0], 26.5, title, color=ink.text, fontsize=8, ha="center")
    axes.text(36, 2, "node 3 is away: its edges do not count in this round", color=ink.text, fontsize=8, ha="center")
    return figure


PICTURES: dict[str, Callable[[Ink], Figure]] = {
    picture.__name__: picture for picture in (one_round, layers, placement, heterogeneity, graph_round)
}


def write(name: str) -> None:
    """Draws a picture for both themes."""
    for ink, suffix in ((LIGHT, ""), (DARK, "-dark")):
        figure = PICTURES[name](ink)
        figure.savefig(IMAGES / f"{name}{suffix}.png", dpi=150, facecolor=ink.ground, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    for each in sys.argv[1:] or PICTURES:
        write(each)
