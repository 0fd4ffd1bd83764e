"""Figures of partitions: CIFAR-10 in FOCUS [1] (figure 8), and Extended Dirichlet in SFL [2] (figure 7)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from papers.base import EXPERIMENTS, Claim, Findings, PaperResult
from papers.run_cache import RunCache
from papers.texts import listing
from raylfl.core.arrays import Ints
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number

CIFAR10 = (5000,) * 10  # training images per class
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def counts_of(partition: Mapping[str, Any], sizes: Sequence[int], clients: int) -> Ints:
    """The samples per client and class [N, K] in a partition of classes of these sizes."""
    from raylfl.config.components import build
    from raylfl.heterogeneity.partition.base import PARTITIONS, Samples
    from raylfl.heterogeneity.partition.stats import class_counts

    labels = np.repeat(np.arange(len(sizes)), sizes)
    samples = Samples(len(labels), labels)
    return class_counts(build(PARTITIONS, partition, "partition").split(samples, clients, seed=0), samples)


@EXPERIMENTS.register("focus/fig8", paper="FOCUS [1] fig. 8")
class Bubbles(PaperResult):
    """Bubble plot of CIFAR-10's labels over 32 clients, Dirichlet(0.05)."""

    def run(self, cache: RunCache) -> Findings:
        from raylfl.report import partition_plot

        counts = counts_of({"name": "dirichlet_client", "alpha": 0.05}, CIFAR10, clients=32)
        shares = -np.sort(-counts / counts.sum(axis=1, keepdims=True), axis=1)
        two = shares[:, :2].sum(axis=1)
        evidence = f"a client's two largest classes hold {100 * np.median(two):.1f} % of its samples in the median, "
        evidence += f"{100 * two.min():.1f} % at the least"
        text = "the data of each client mainly cover one or two classes"
        figure = partition_plot.figure(counts, None, "Dirichlet 0.05, 32 clients")
        return Findings([], [Claim(text, bool(np.median(two) > 0.9), evidence)], {"fig8": figure})


@EXPERIMENTS.register("sfl/exdir", paper="SFL [2] fig. 7")
class ExDir(PaperResult):
    """MNIST over 10 clients by ExDir(C, alpha): C = 1, 2, 5, 10 classes per client, alpha = 100, 10, 1."""

    clients: ClassVar = 10
    classes: ClassVar = (1, 2, 5, 10)
    alphas: ClassVar = (100.0, 10.0, 1.0)  # from left to right, as in the paper

    def run(self, cache: RunCache) -> Findings:
        counts = {
            (c, alpha): counts_of({"name": "exdir", "classes": c, "alpha": alpha}, MNIST, self.clients)
            for c in self.classes
            for alpha in self.alphas
        }
        names, rows = {cell: "ExDir({}, {:g})".format(*cell) for cell in counts}, []
        for cell, item in counts.items():
            samples, uneven = item.sum(axis=1), unevenness(item)
            row = {"partition": names[cell], "classes": (item > 0).sum(axis=1).mean(), "uneven": uneven}
            rows.append(row | {"least": int(samples.min()), "most": int(samples.max())})
        columns = [
            Column("partition", "partition"),
            Column("classes", "classes per client", partial(number, digits=3), None, True),
            Column("least", "fewest samples", str, None, True),
            Column("most", "most samples", str, None, True),
            Column("uneven", "unevenness", partial(number, digits=3), None, True),
        ]
        caption = "Unevenness: std / mean of a class's sample numbers at the clients that own it, mean over classes."
        figure = heat_maps({names[cell]: item for cell, item in counts.items()})
        return Findings([ReportTable("exdir", caption, columns, rows)], self.claims(counts), {"exdir": figure})

    def claims(self, counts: Mapping[tuple[int, float], Ints]) -> list[Claim]:
        single = [np.sort(counts[1, alpha].max(axis=1)) for alpha in self.alphas]
        left_over = [sum(MNIST) - int(item.sum()) for item in counts.values()]
        most = {c: max(int((counts[c, a] > 0).sum(axis=1).max()) for a in self.alphas) for c in self.classes}
        spread = {f"C={c}": [unevenness(counts[c, alpha]) for alpha in self.alphas] for c in self.classes[1:]}
        falls = listing(spread, lambda values: ", ".join(f"{v:.2f}" for v in values), ": ", "; ")
        text = "C>1: heterogeneity increases from left to right (alpha = 100, 10, 1)"
        return [
            Claim(
                "C=1: the three partitions are the same, one class per client",
                all(np.array_equal(sizes, np.sort(MNIST)) for sizes in single),
                f"each client holds all of one class: {single[0].min()} to {single[0].max()} samples",
            ),
            Claim(text, all(a < b < c for a, b, c in spread.values()), f"unevenness for alpha = 100, 10, 1: {falls}"),
            Claim(
                "no client holds more than C classes",
                all(n <= c for c, n in most.items()),
                "most classes: " + listing({f"C={c}": n for c, n in most.items()}, str, ": "),
            ),
            Claim("no sample is left over", not any(left_over), f"{sum(left_over)} in all partitions together"),
        ]


def unevenness(counts: Ints) -> float:
    """Std / mean of the sample numbers of a class at the clients that have it, mean over classes; counts: [N, K]."""
    owned = [column[column > 0] for column in counts.T]
    return float(np.mean([column.std() / column.mean() for column in owned]))


def heat_maps(panels: Mapping[str, Ints]) -> Figure:
    """A figure of partitions as heat-maps, as in SFL, Fig. 7; panels: title -> samples [clients, classes]."""
    from raylfl.report.figures import Block, Panel, composed
    from raylfl.report.partition_plot import heat
    from raylfl.report.style import rc

    heat_panels = [Panel(title, partial(heat, counts=counts), (2.9, 2.35), title) for title, counts in panels.items()]
    with rc():
        return composed(Block("", "", "", heat_panels))
