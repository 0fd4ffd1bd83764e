"""SFL [2] (Li & Lyu, NeurIPS 2023), figures 12 to 15: training, training-R and test curves at the best rates.

"Training" is measured on the data of the participating clients; "training-R" on data of random clients, as many as take
part in a round. PFL is the paper's name for parallel federated learning, that is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from raylfl.report.derived import last_k
from raylfl.report.runs import Group
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import metric_name, stat_text
from papers.base import EXPERIMENTS, SCALES, Findings, PaperResult
from papers.run_cache import RunCache
from papers.sfl import Table3, Table11, best_rates
from papers.sfl_cells import GRID, SEEDS, Cell, cells
from papers.texts import ACCURACY

METRICS = ("participants/loss", "participants/accuracy", "random/loss", "random/accuracy", ACCURACY)
EXTRA = {"eval.participants": True, "eval.random_clients": 10}


class TrainingCurves(PaperResult):
    """Losses and accuracies on the clients' data and on the test set, PFL and SFL at their best learning rates.

    stem: file name of the figures; tasks: names of data and model; `training`, `training-R` and PFL: see the module.
    stages: (rounds, number of last rounds averaged) of each stage of the search; the final runs have those of the last
    stage. share: the fraction of all measured points in a moving average.
    """

    scales = SCALES
    stem: ClassVar[str]
    tasks: ClassVar[Sequence[str]]
    stages: ClassVar[Sequence[tuple[int, int]]]
    share: ClassVar[float]

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        tasks, steps = cache.pick(self.tasks[:1], self.tasks), cache.pick((5,), (5, 20, 50))
        grid = cache.pick({"PFL": (0.1,), "SFL": (0.03,)}, GRID)
        stages = cache.pick([(60, 20)], self.stages)
        rates = best_rates(cache, {cell: grid[cell.method] for cell in cells(tasks, steps)}, stages)
        rounds, last = stages[-1]
        settings = [
            (own := cell.setting(lr, rounds, cache.scale)).with_(f"{own.label}, clients", EXTRA)
            for cell, lr in rates.items()
        ]
        groups = dict(zip(rates, cache.groups(settings, cache.pick(SEEDS[:1], SEEDS)), strict=True))
        lines: dict[str, dict[str, Group]] = {}
        for cell, group in groups.items():
            lines.setdefault(f"{cell.task}, C={cell.classes}", {})[f"{cell.method}, K={cell.steps}"] = group
        window = cache.pick(1, max(1, round(self.share * rounds / 10)))  # evaluated every 10 rounds
        looks = draw.styles({name: name for own in lines.values() for name in own})
        figures = {
            f"{self.stem}_{place}": draw.curves(
                [draw.Plot(heading, own, m, band="std", window=window) for m in METRICS], looks
            )
            for place, (heading, own) in enumerate(lines.items())
        }
        return Findings([self._table(groups, rates, last)], [], figures)

    def _table(self, groups: Mapping[Cell, Group], rates: Mapping[Cell, float], last: int) -> ReportTable:
        rows: list[dict[str, Any]] = [
            {"block": cell.task, "row": f"{cell.row}, {cell.method}", "lr": rates[cell]}
            | {metric: last_k(group, metric, last) for metric in METRICS}
            for cell, group in groups.items()
        ]
        columns = [Column("row", ""), Column("lr", "lr", lambda v: f"{v:g}", None, True)]
        columns += [Column(m, metric_name(m), partial(stat_text, metric=m), None, True) for m in METRICS]
        return ReportTable(self.stem, f"Mean ± std over seeds and the last {last} rounds.", columns, rows)


@EXPERIMENTS.register("sfl/fig12", paper="SFL [2] fig. 12")
class Fig12(TrainingCurves):
    """Training, training-R and test curves on MNIST."""

    stem, tasks = "fig12", ("MNIST, logistic", "MNIST, MLP", "MNIST, LeNet-5")
    stages, share = Table11.stages, 0.08


@EXPERIMENTS.register("sfl/fig13", paper="SFL [2] fig. 13")
class Fig13(TrainingCurves):
    """Training, training-R and test curves on FashionMNIST."""

    stem, tasks, stages, share = "fig13", ("FMNIST, LeNet-5", "FMNIST, CNN"), Table11.stages, 0.08


@EXPERIMENTS.register("sfl/fig14", paper="SFL [2] fig. 14")
class Fig14(TrainingCurves):
    """Training, training-R and test curves on CIFAR-10."""

    stem, tasks, stages, share = "fig14", ("CIFAR-10, VGG-9", "CIFAR-10, ResNet-18"), Table3.stages, 0.04


@EXPERIMENTS.register("sfl/fig15", paper="SFL [2] fig. 15")
class Fig15(TrainingCurves):
    """Training, training-R and test curves on CINIC-10."""

    stem, tasks, stages, share = "fig15", ("CINIC-10, VGG-9", "CINIC-10, ResNet-18"), Table3.stages, 0.04
