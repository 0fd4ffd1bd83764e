"""FedACS [3] (Weng, Ren, Xiao & Skoglund 2025): rounds and computation to a target accuracy, tables 1, 4 and 5."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from raylfl.errors import BadConfig
from raylfl.report.derived import Stat, group_to_target, last_k
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import cost_text
from papers.base import EXPERIMENTS, SCALES, Claim, Findings, PaperResult
from papers.choice import plain
from papers.run_cache import RunCache
from papers.setting import Setting, setting
from papers.texts import ACCURACY, accuracy_text, cost_or_dash, mean_cost, ratio_text

AXES = {  # axis of the costs to the target -> what FedACS does, in the claims
    "rounds": "reaches the target in the fewest rounds (OS apart)",
    "computation": "computes least to reach the target (OS apart), in local steps",
}
# all methods with equal effective steps (App. I.2), in the forms of its eqs. (111)-(116)
METHODS: dict[str, dict[str, Any]] = {
    "FedACS": {"algorithm.name": "fedacs"},
    "FedAvg": {"algorithm.name": "fedavg", "algorithm.aggregate": "anonymous"},
    "c-a-FedAvg": {"algorithm.name": "cafedavg"},
    "FedVARP": {"algorithm.name": "fedvarp", "algorithm.lost": "reuse"},
    "FedNova": {"algorithm.name": "fednova", "algorithm.normalise": "sent"},
    "FedAU": {"algorithm.name": "fedau"},
    "OS": {"algorithm.name": "optimal_sampling"},
}
LOOKS = {name: str(options["algorithm.name"]) for name, options in METHODS.items()}
SEEDS = (0, 1, 2)  # the paper says "multiple runs"
SMOKE_TARGET = 0.7  # at scale `smoke`, on the digits
LAST = 5  # rounds whose mean is a method's accuracy (App. I.3.4)
NEVER = math.inf  # a dash in the tables, as for FedAU everywhere
Costs = Mapping[str, Mapping[str, Mapping[str, Stat]]]  # task -> method -> axis -> our cost to the target


@dataclass(frozen=True)
class Task:
    """A column of a table: data, network, target accuracy, and the published costs to reach the target.

    configs, options: the config files and dotted keys of data and network. published: method -> key of AXES -> cost.
    gains: the lowest and the highest published lead of FedACS in accuracy, in percentage points.
    """

    heading: str
    configs: Sequence[str]
    target: float
    published: Mapping[str, Mapping[str, float]]
    options: Mapping[str, Any] = field(default_factory=dict)
    gains: tuple[float, float] = field(kw_only=True)


def _costs(text: str) -> dict[str, dict[str, float]]:
    """Method -> published rounds and seconds to the target, from a text such as `68 3548.6, 93 5470.4, ...`.

    The order is FedACS, FedAvg, c-a-FedAvg, FedVARP, FedNova, OS. `- -` means that the target was never reached. FedAU,
    which never reached a target, is not in the text but is added.
    """
    names = [name for name in METHODS if name != "FedAU"]
    pairs = dict(zip(names, text.split(","), strict=True)) | {"FedAU": "- -"}
    return {
        name: {axis: NEVER if x == "-" else float(x) for axis, x in zip(AXES, pair.split(), strict=True)}
        for name, pair in pairs.items()
    }


class Efficiency(PaperResult):
    """A table of the rounds and the computation that seven methods need to reach a test accuracy.

    stem: file name of the table; system: the config of the system of heterogeneity; tasks: the columns. `--only`
    selects columns and seeds; a column needs the runs of all methods.
    """

    scales, choices = SCALES, ("task", "seed")
    stem: ClassVar[str]
    system: ClassVar[str]
    tasks: ClassVar[Sequence[Task]]

    def run(self, cache: RunCache) -> Findings:
        from papers import draw

        tasks = [task for task in self.tasks if cache.only.keeps(task=task.heading)]
        settings: dict[str, dict[str, Setting]] = {}
        for task in tasks:
            base = self.setting(cache, task).with_("", {"algorithm.calibrate": True})
            settings[task.heading] = {n: base.with_(f"{task.heading}, {n}", own) for n, own in METHODS.items()}
        runs = cache.table(settings, cache.pick(SEEDS[:2], SEEDS))
        found = {heading: own for heading, own in runs.items() if len(own) == len(METHODS)}
        tasks = [task for task in tasks if task.heading in found]
        if not tasks:
            raise BadConfig("no column has runs of all methods yet; `raylfl reproduce` makes the missing ones")
        targets = {task.heading: cache.pick(SMOKE_TARGET, task.target) for task in tasks}
        ours = {
            heading: {
                name: {axis: group_to_target(group, ACCURACY, target, axis) for axis in AXES}
                for name, group in found[heading].items()
            }
            for heading, target in targets.items()
        }
        plots = [draw.Plot(heading, lines, ACCURACY, band="std", window=5) for heading, lines in found.items()]
        told = ", ".join(f"{heading} {100 * target:g} %" for heading, target in targets.items())
        tables = [self._table(ours, axis, told) for axis in AXES]
        ends = {
            heading: {name: last_k(group, ACCURACY, LAST) for name, group in groups.items()}
            for heading, groups in found.items()
        }
        claims = [*self.claims(ours), *self.gains(ends), *self.rivals(ours, ends)]
        return Findings(
            [*tables, self._accuracies(ends)], claims, {self.stem: draw.curves(plots, draw.styles(LOOKS))}, [UNITS]
        )

    def cell(self, config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
        words = name.rpartition("-s")[0]
        task = next(plain(task.heading) for task in self.tasks if words.startswith(plain(task.heading)))
        return {"task": task, "method": words.removeprefix(f"{task}-")}

    def _columns(self, ours: Mapping[str, Any]) -> list[Task]:
        """The tasks that have results in `ours` (task -> results)."""
        return [task for task in self.tasks if task.heading in ours]

    def setting(self, cache: RunCache, task: Task) -> Setting:
        """The setting of FedAvg on this task, at the cache's scale; other methods change its options."""
        options = dict(task.options)
        if cache.scale == "smoke":
            options |= {"num_clients": 20, "rounds": 80, "local.batch_size": 32, "local.lr": 0.05}
            if "partition.classes" not in options:
                options["partition.min_size"] = 2
        return setting("", ["reproduce/fedacs_table1", self.system, *task.configs, f"reproduce/{cache.scale}"], options)

    @staticmethod
    def claims(ours: Costs) -> list[Claim]:
        """The claims of Sec. 6: among all methods but OS, FedACS needs the fewest rounds and the least computation.

        ours: the costs to the target. OS: optimal sampling.
        """
        claims = []
        for heading, methods in ours.items():
            for axis, does in AXES.items():
                spent = {name: mean_cost(costs[axis]) for name, costs in methods.items()}
                rivals = [value for name, value in spent.items() if name not in ("FedACS", "OS")]
                told = ", ".join(f"{name} {cost_or_dash(v)}" for name, v in sorted(spent.items(), key=lambda i: i[1]))
                claims.append(Claim(f"{heading}: FedACS {does}", spent["FedACS"] < min(rivals), told))
        return claims

    def gains(self, ends: Mapping[str, Mapping[str, Stat]]) -> list[Claim]:
        """The claims of figs. 6, 9, 10: FedACS has the highest final accuracy; the evidence is its lead in points.

        ends: task -> method -> accuracy over the last rounds.
        """
        claims = []
        for task in self._columns(ends):
            own = ends[task.heading]
            gains = [100 * (own["FedACS"].mean - stat.mean) for name, stat in own.items() if name != "FedACS"]
            told = f"{min(gains):.1f} to {max(gains):.1f} points above the others"
            told += f"; published {task.gains[0]:g} to {task.gains[1]:g}"
            text = f"{task.heading}: FedACS has the highest accuracy over the last {LAST} rounds"
            claims.append(Claim(text, min(gains) > 0, told))
        return claims

    @staticmethod
    def rivals(ours: Costs, ends: Mapping[str, Mapping[str, Stat]]) -> list[Claim]:
        """The claims of Sec. 6 about other methods: FedAU never reaches the target, c-a-FedAvg varies more than FedAvg.

        ours: the costs to the target; ends: task -> method -> accuracy over the last rounds.
        """
        reached = {heading: mean_cost(methods["FedAU"]["rounds"]) for heading, methods in ours.items()}
        told = ", ".join(f"{heading} {cost_or_dash(value)}" for heading, value in reached.items())
        never = Claim("FedAU reaches no target", not any(map(math.isfinite, reached.values())), told)
        spread = {name: sum(own[name].std for own in ends.values()) / len(ends) for name in METHODS}
        order = sorted(spread, key=lambda name: -spread[name])
        told = ", ".join(f"{name} {100 * spread[name]:.1f}" for name in order)
        text = f"c-a-FedAvg varies more than FedAvg over the last {LAST} rounds and the seeds"
        return [never, Claim(text, spread["c-a-FedAvg"] > spread["FedAvg"], told)]

    def _accuracies(self, ends: Mapping[str, Mapping[str, Stat]]) -> ReportTable:
        columns = [Column("method", "method"), *(Column(head, head, accuracy_text, "max", True) for head in ends)]
        rows = [{"method": name, **{heading: own[name] for heading, own in ends.items()}} for name in METHODS]
        caption = f"Test accuracy in %: mean ± std over seeds and the last {LAST} rounds (App. I.3.4)."
        return ReportTable(f"{self.stem}_accuracy", caption, columns, rows)

    def _table(self, ours: Costs, axis: str, until: str) -> ReportTable:
        columns = [Column("method", "method")]
        for task in self._columns(ours):
            columns += [
                Column(f"{task.heading} ours", f"{task.heading}: ours", cost_text, "min", True),
                Column(f"{task.heading} ratio", "x FedACS", ratio_text, None, True),
                Column(f"{task.heading} published", "published", cost_or_dash, "min", True),
                Column(f"{task.heading} published ratio", "x FedACS", ratio_text, None, True),
            ]
        rows = []
        for name in METHODS:
            row: dict[str, Any] = {"method": name}
            for task in self._columns(ours):
                costs = {method: own[axis] for method, own in ours[task.heading].items()}
                numbers = {method: own[axis] for method, own in task.published.items()}
                row[f"{task.heading} ours"] = costs[name]
                row[f"{task.heading} ratio"] = mean_cost(costs[name]) / mean_cost(costs["FedACS"])
                row[f"{task.heading} published"] = numbers[name]
                row[f"{task.heading} published ratio"] = numbers[name] / numbers["FedACS"]
            rows.append(row)
        caption = f"{axis.capitalize()} until {until}; mean ± std over seeds."
        return ReportTable(f"{self.stem}_{axis}", caption, columns, rows)


UNITS = "our computation time is counted in local steps, the paper's in seconds of its machine: compare the ratios"


MNIST = ["data/mnist", "model/cnn_fedacs_mnist", "partition/classes"]
CINIC = ["data/cinic10", "model/cnn_fedacs_cinic"]
ONE_CLASS: dict[str, Any] = {"partition.classes": 1, "local.batch_size": 512, "local.lr": 0.02}


@EXPERIMENTS.register("fedacs/table1", paper="FedACS [3] table 1, fig. 6")
class Table1(Efficiency):
    """Rounds and computation to a target accuracy in the dynamic system.

    There, links and local steps of the clients are unequal and change in every round.
    """

    stem, system = "table1", "preset/fedacs_dynamic"
    time = "the MNIST rows of tables 1 and 4 take about 30 hours on two cores"
    tasks = (
        Task(
            "MNIST",
            MNIST,
            0.70,
            _costs("68 3548.6, 93 5470.4, 84 4884.4, 115 7289.9, 99 6043.4, 72 4391.9"),
            ONE_CLASS,
            gains=(7.5, 36),
        ),
        Task(
            "CIFAR-10",
            [],
            0.40,
            _costs("100 6928.9, 143 12482.0, 130 7917.0, 165 13479.8, 161 13314.8, 80 5095.3"),
            gains=(7, 11),
        ),
        Task(
            "CINIC-10",
            CINIC,
            0.35,
            _costs("55 11452.3, 74 14550.0, 67 13256.8, 104 22200.5, 100 21802.2, 65 14248.9"),
            gains=(4.3, 15),
        ),
    )


# The paper's text lacks the dashes of table 4; its ratios (1.06x rounds, 1.34x seconds) identify the numbers of OS.
@EXPERIMENTS.register("fedacs/table4", paper="FedACS [3] table 4, fig. 9")
class Table4(Efficiency):
    """Rounds and computation to a target accuracy in the static system.

    There, links and local steps of the clients are unequal and the same in every round.
    """

    stem, system = "table4", "preset/fedacs_static"
    tasks = (
        Task(
            "MNIST",
            MNIST,
            0.70,
            _costs("64 4307.7, 92 6458.7, 68 5039.2, 92 6846.9, 103 7893.4, - -"),
            ONE_CLASS,
            gains=(11, 34),
        ),
        Task(
            "CIFAR-10",
            [],
            0.40,
            _costs("68 4706.3, 112 8609.0, 101 8221.3, 148 11862.5, 117 8536.8, 72 6307.7"),
            gains=(4, 12),
        ),
        Task(
            "CINIC-10",
            CINIC,
            0.35,
            _costs("36 12837.2, 57 19999.3, 55 18334.6, 73 25479.9, 83 29968.5, 47 13953.2"),
            gains=(4, 14),
        ),
    )


@EXPERIMENTS.register("fedacs/table5", paper="FedACS [3] table 5, fig. 10")
class Table5(Efficiency):
    """Rounds and computation to a target accuracy on CIFAR-10 at three Dirichlet alphas, dynamic system.

    In this system, links and local steps of the clients are unequal and change in every round.
    """

    stem, system = "table5", "preset/fedacs_dynamic"
    tasks = (
        Task(
            "alpha 0.05",
            [],
            0.35,
            _costs("107 6186.2, 149 9591.7, 142 8982.4, - -, - -, 110 6310.7"),
            {"partition.alpha": 0.05},
            gains=(3.5, 13.4),
        ),
        Task(
            "alpha 0.2",
            [],
            0.35,
            _costs("51 4747.3, 88 8930.0, 88 8873.4, 156 17728.6, 125 13690.4, 54 5305.3"),
            {"partition.alpha": 0.2},
            gains=(4, 14.3),
        ),
        Task(
            "alpha 0.35",
            [],
            0.40,
            _costs("36 3391.5, 88 8918.3, 90 9293.9, 159 17733.9, 94 9901.3, 32 3100.7"),
            {"partition.alpha": 0.35},
            gains=(3, 12),
        ),
    )


class Epochs(Efficiency):
    """A table with T_m local epochs of client m instead of T_m local steps, the other reading of App. I.3.1."""

    def setting(self, cache: RunCache, task: Task) -> Setting:
        made = super().setting(cache, task)  # in a smoke run, an epoch has one or two steps
        more = cache.pick({"local.batch_size": 64, "rounds": 40}, {})
        return made.with_(made.label, {"local.steps": None} | more)  # conf/reproduce/fedacs_table1 sets local.steps


@EXPERIMENTS.register("fedacs/table1-epochs", paper="FedACS [3] table 1, fig. 6")
class Table1Epochs(Epochs, Table1):
    """Table 1 with T_m local epochs of client m instead of local steps, as App. I.3.1 says."""

    stem, system = "table1_epochs", "preset/fedacs_dynamic_epochs"


@EXPERIMENTS.register("fedacs/table4-epochs", paper="FedACS [3] table 4, fig. 9")
class Table4Epochs(Epochs, Table4):
    """Table 4 with T_m local epochs of client m instead of local steps, as App. I.3.1 says."""

    stem, system = "table4_epochs", "preset/fedacs_static_epochs"


@EXPERIMENTS.register("fedacs/table5-epochs", paper="FedACS [3] table 5, fig. 10")
class Table5Epochs(Epochs, Table5):
    """Table 5 with T_m local epochs of client m instead of local steps, as App. I.3.1 says."""

    stem, system = "table5_epochs", "preset/fedacs_dynamic_epochs"
