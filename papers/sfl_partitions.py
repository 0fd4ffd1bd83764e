"""SFL [2] (Li & Lyu, NeurIPS 2023): the Extended Dirichlet partition, figure 7."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from papers.base import EXPERIMENTS, Claim, Findings, PaperResult
from papers.partitions import MNIST, counts_of
from papers.run_cache import RunCache
from raylfl.core.arrays import Ints
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number


@EXPERIMENTS.register("sfl/exdir", paper="SFL [2] fig. 7")
class ExDir(PaperResult):
    """MNIST over 10 clients by ExDir(C, alpha): C = 1, 2, 5, 10 classes per client, alpha = 100, 10, 1.

    alpha: a small value splits the samples of a class more unevenly.
    """

    clients: ClassVar = 10
    classes: ClassVar = (1, 2, 5, 10)
    alphas: ClassVar = (100.0, 10.0, 1.0)  # from left to right, as in the paper

    def run(self, cache: RunCache) -> Findings:
        counts = {
            (c, alpha): counts_of({"name": "exdir", "classes": c, "alpha": alpha}, MNIST, self.clients)
            for c in self.classes
            for alpha in self.alphas
        }
        figure = heat_maps({f"ExDir({c}, {alpha:g})": item for (c, alpha), item in counts.items()})
        return Findings([self._table(counts)], self.claims(counts), {"exdir": figure})

    def claims(self, counts: Mapping[tuple[int, float], Ints]) -> list[Claim]:
        """The claims in the caption of fig. 7 and in the definition of ExDir.

        counts: (C, alpha) -> samples per client and class.
        """
        single = [np.sort(counts[1, alpha].max(axis=1)) for alpha in self.alphas]
        left_over = {key: sum(MNIST) - int(item.sum()) for key, item in counts.items()}
        most = {key: int((item > 0).sum(axis=1).max()) for key, item in counts.items()}
        spread = {c: [unevenness(counts[c, alpha]) for alpha in self.alphas] for c in self.classes[1:]}
        return [
            Claim(
                "C=1: the three partitions are the same, one class per client",
                all(np.array_equal(sizes, np.sort(MNIST)) for sizes in single),
                f"each client holds all of one class: {single[0].min()} to {single[0].max()} samples",
            ),
            Claim(
                "C>1: heterogeneity increases from left to right (alpha = 100, 10, 1)",
                all(left < middle < right for left, middle, right in spread.values()),
                "unevenness for alpha = 100, 10, 1: "
                + "; ".join(f"C={c}: " + ", ".join(f"{v:.2f}" for v in values) for c, values in spread.items()),
            ),
            Claim(
                "no client holds more than C classes",
                all(n <= c for (c, _), n in most.items()),
                "most classes: "
                + ", ".join(f"C={c}: {max(most[c, alpha] for alpha in self.alphas)}" for c in self.classes),
            ),
            Claim(
                "no sample is left over",
                not any(left_over.values()),
                f"{sum(left_over.values())} in all partitions together",
            ),
        ]

    @staticmethod
    def _table(counts: Mapping[tuple[int, float], Ints]) -> ReportTable:
        rows = [
            {
                "partition": f"ExDir({c}, {alpha:g})",
                "classes": (item > 0).sum(axis=1).mean(),
                "least": int(item.sum(axis=1).min()),
                "most": int(item.sum(axis=1).max()),
                "uneven": unevenness(item),
            }
            for (c, alpha), item in counts.items()
        ]
        columns = [
            Column("partition", "partition"),
            Column("classes", "classes per client", lambda v: number(v, 3), None, True),
            Column("least", "fewest samples", str, None, True),
            Column("most", "most samples", str, None, True),
            Column("uneven", "unevenness", lambda v: number(v, 3), None, True),
        ]
        caption = "Unevenness: std / mean of a class's sample numbers at the clients that own it, mean over classes."
        return ReportTable("exdir", caption, columns, rows)


def unevenness(counts: Ints) -> float:
    """The unevenness of a partition: std / mean of the numbers of samples that a class has at its clients.

    Clients without the class are left out; the result is the mean over classes. counts: the samples per client and
    class [N, K].
    """
    owned = [column[column > 0] for column in counts.T]
    return float(np.mean([column.std() / column.mean() for column in owned]))


def heat_maps(panels: Mapping[str, Ints]) -> Figure:
    """A figure of several partitions as heat-maps on one scale, up to three in a row, as in SFL, Fig. 7.

    panels: title -> samples [clients, classes].
    """
    from raylfl.report import partition_plot
    from raylfl.report.style import INK, PAPER, Drawing, rc

    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    largest = max(int(counts.max()) for counts in panels.values())
    norm = PowerNorm(0.5, vmin=0, vmax=largest)
    with rc():
        drawn = Drawing(figsize=(0.4 + 2.5 * across, 0.3 + 2.35 * down), dpi=200, layout="constrained")
        axes = drawn.subplots(down, across, squeeze=False).ravel()
        for place, (ax, (title, counts)) in enumerate(zip(axes, panels.items(), strict=False)):
            ax.imshow(counts.T, cmap=partition_plot.HEAT, norm=norm, origin="lower", aspect="auto")
            for i, c in np.argwhere(counts):
                ink = PAPER if counts[i, c] > 0.5 * largest else INK
                ax.text(i, c, str(counts[i, c]), ha="center", va="center", color=ink, fontsize=5.2)
            partition_plot.label_axes(ax, counts, None)
            ax.grid(False)
            ax.set_title(title)
            if place % across:
                ax.set_ylabel("")
            if place + across < len(panels):
                ax.set_xlabel("")
        for ax in axes[len(panels) :]:
            ax.remove()
    return drawn
