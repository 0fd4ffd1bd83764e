"""FedACS [3] (Weng, Ren, Xiao & Skoglund 2025): tables 1, 4, 5; figures 4 and 7, with limits by eq. 39."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from papers import numbers
from papers.base import EXPERIMENTS, Claim
from papers.grid import Axis, Point
from papers.ledger import Row, run_of
from papers.lines import Lines, Values
from papers.numbers import ACCURACY, accuracy_text, cost_or_dash, listing, mean_cost, ordered, ratio_text, table_of
from papers.run_cache import RunCache
from raylfl.core.arrays import Floats
from raylfl.errors import BadConfig
from raylfl.report.derived import group_to_target, last_k, to_target
from raylfl.report.runs import Group, RunRecord
from raylfl.report.tables import Column
from raylfl.report.wording import cost_text, number

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
SMOKE_TARGET = 0.7  # at scale `smoke`, on the digits
UNITS = "our computation time is counted in local steps, the paper's in seconds of its machine: compare the ratios"
LAST = 5  # rounds whose mean is a method's accuracy (App. I.3.4)
MNIST = {
    "base": ["data/mnist", "model/cnn_fedacs_mnist", "partition/classes"],
    "partition.classes": 1,
    "paper": {"local.batch_size": 512, "local.lr": 0.02},
}
DIRICHLET: dict[str, Any] = {"smoke": {"partition.min_size": 2}}
CINIC = DIRICHLET | {"base": ["data/cinic10", "model/cnn_fedacs_cinic"]}
IMAGES: Axis = {"MNIST": MNIST, "CIFAR-10": DIRICHLET, "CINIC-10": CINIC}


def columns_of(table: str) -> dict[str, dict[str, Any]]:
    """Task -> its column in a table of the paper: `target`, `gains` and, for each method, its cost by key of AXES.

    gains: the lowest and highest lead of FedACS in accuracy, in points. A dash in the file: never reached, as by FedAU.
    """
    columns: dict[str, dict[str, Any]] = {}
    for row in (row for row in table_of("fedacs_costs") if row["table"] == table):
        gains = float(row["lowest gain"]), float(row["highest gain"])
        column = columns[row["task"]] = {"target": float(row["target"]), "gains": gains}
        for name in METHODS:
            pair = row.get(name, "- -").replace("-", "inf").split()
            column[name] = dict(zip(AXES, map(float, pair), strict=True))
    return columns


class Efficiency(Lines):
    """Rounds and computation that seven methods need to reach a test accuracy; number: the paper's table."""

    number: ClassVar[str]
    seeds, smoke_seeds, choices = (0, 1, 2), 2, ("task", "seed")  # the paper says "multiple runs"
    options: ClassVar[dict[str, Any]] = {"algorithm.calibrate": True}
    smoke: ClassVar[dict[str, Any]] = {"num_clients": 20, "rounds": 80, "local.batch_size": 32, "local.lr": 0.05}
    axes: ClassVar = {"task": IMAGES, "method": METHODS}
    curves, curve_points = (ACCURACY, "time/computation"), 200  # all rounds
    panel, looks, notes, plot = "task", LOOKS, (UNITS,), {"band": "std", "window": 5}
    columns: ClassVar = [
        column
        for axis in AXES
        for key, head, show in ((axis, axis, cost_text), (f"{axis} published", "published", cost_or_dash))
        for column in (Column(key, head, show, "min", True), Column(f"{key} ratio", "x FedACS", ratio_text, None, True))
    ] + [Column("accuracy", "accuracy (%)", accuracy_text, "max", True)]

    def lines(self, cache: RunCache) -> dict[str, dict[str, Group]]:
        groups = {task: lines for task, lines in super().lines(cache).items() if len(lines) == len(METHODS)}
        if not groups:
            raise BadConfig("no task has runs of all methods yet; `raylfl reproduce` makes the missing ones")
        return groups

    def values_of(self, panel: str, lines: Mapping[str, Group], scale: str) -> dict[str, dict[str, Any]]:
        column, values = columns_of(self.number)[panel], dict[str, dict[str, Any]]()
        target = SMOKE_TARGET if scale == "smoke" else column["target"]
        for name, group in lines.items():
            of = values[name] = {"target": target, "gains": column["gains"], "accuracy": last_k(group, ACCURACY, LAST)}
            for axis in AXES:
                cost, base = (group_to_target(lines[line], ACCURACY, target, axis) for line in (name, "FedACS"))
                of |= {axis: cost, f"{axis} published": column[name][axis]}
                of[f"{axis} ratio"] = mean_cost(cost) / mean_cost(base)
                of[f"{axis} published ratio"] = column[name][axis] / column["FedACS"][axis]
        return values

    def caption_of(self, values: Values) -> str:
        goals = listing({task: f"{100 * lines['FedACS']['target']:g} %" for task, lines in values.items()}, str)
        return f"Costs until {goals}; accuracies over the last {LAST} rounds (App. I.3.4); mean ± std over seeds."

    def headline(self, point: Point, row: Row) -> tuple[str, float | None, float | None]:
        column = columns_of(self.number)[point.task]
        rounds = to_target(run_of(row, {}, ""), ACCURACY, column["target"])
        return f"rounds to {column['target']:g}", rounds, column[point.method]["rounds"]

    def claims(self, values: Values) -> list[Claim]:
        """The claims of Sec. 6, and that of figs. 6, 9, 10: FedACS has the highest final accuracy."""
        costs, gains = list[Claim](), list[Claim]()
        for task, methods in values.items():
            for axis, does in AXES.items():
                spent = {name: mean_cost(of[axis]) for name, of in methods.items()}
                best = min(value for name, value in spent.items() if name not in ("FedACS", "OS"))
                evidence = listing(ordered(spent), cost_or_dash)
                costs.append(Claim(f"{task}: FedACS {does}", spent["FedACS"] < best, evidence))
            ends = {name: 100 * of["accuracy"].mean for name, of in methods.items()}
            leads = [ends["FedACS"] - end for name, end in ends.items() if name != "FedACS"]
            evidence = f"{min(leads):.1f} to {max(leads):.1f} points above the others"
            text = f"{task}: FedACS has the highest accuracy over the last {LAST} rounds"
            published = "{:g} to {:g}".format(*methods["FedACS"]["gains"])
            gains.append(Claim(text, min(leads) > 0, evidence, published=published))
        reached = {task: mean_cost(methods["FedAU"]["rounds"]) for task, methods in values.items()}
        never = not any(map(math.isfinite, reached.values()))
        spread = {name: sum(of[name]["accuracy"].std for of in values.values()) / len(values) for name in METHODS}
        varies = f"c-a-FedAvg varies more than FedAvg over the last {LAST} rounds and the seeds"
        return [
            *costs,
            *gains,
            Claim("FedAU reaches no target", never, listing(reached, cost_or_dash)),
            Claim(varies, spread["c-a-FedAvg"] > spread["FedAvg"], listing(ordered(spread, lambda std: -std))),
        ]


@EXPERIMENTS.register("fedacs/table1", paper="FedACS [3] table 1, fig. 6")
class Table1(Efficiency):
    """Rounds and computation to a target accuracy in the dynamic system."""

    number = stem = "table1"
    base = ("reproduce/fedacs_table1", "preset/fedacs_dynamic")
    time = "the MNIST rows of tables 1 and 4 take about 30 hours on two cores"


# The paper's text lacks the dashes of table 4; its ratios (1.06x rounds, 1.34x seconds) identify the numbers of OS.
@EXPERIMENTS.register("fedacs/table4", paper="FedACS [3] table 4, fig. 9")
class Table4(Efficiency):
    """Rounds and computation to a target accuracy in the static system."""

    number = stem = "table4"
    base = ("reproduce/fedacs_table1", "preset/fedacs_static")


@EXPERIMENTS.register("fedacs/table5", paper="FedACS [3] table 5, fig. 10")
class Table5(Efficiency):
    """Rounds and computation to a target accuracy on CIFAR-10 at three Dirichlet alphas, dynamic system."""

    number = stem = "table5"
    base = ("reproduce/fedacs_table1", "preset/fedacs_dynamic")
    tasks: ClassVar = {f"alpha {alpha:g}": DIRICHLET | {"partition.alpha": alpha} for alpha in (0.05, 0.2, 0.35)}
    axes: ClassVar = {"task": tasks, "method": METHODS}


class Epochs(Efficiency):
    """A table with T_m local epochs of client m instead of T_m local steps."""

    smoke: ClassVar = Efficiency.smoke | {"local.batch_size": 64, "rounds": 40}  # an epoch has one or two steps
    options: ClassVar = Efficiency.options | {"local.steps": None}  # which conf/reproduce/fedacs_table1 sets


@EXPERIMENTS.register("fedacs/table1-epochs", paper="FedACS [3] table 1, fig. 6")
class Table1Epochs(Epochs, Table1):
    """Table 1 with T_m local epochs of client m instead of local steps, as App. I.3.1 says."""

    stem, base = "table1_epochs", ("reproduce/fedacs_table1", "preset/fedacs_dynamic_epochs")


@EXPERIMENTS.register("fedacs/table4-epochs", paper="FedACS [3] table 4, fig. 9")
class Table4Epochs(Epochs, Table4):
    """Table 4 with T_m local epochs of client m instead of local steps, as App. I.3.1 says."""

    stem, base = "table4_epochs", ("reproduce/fedacs_table1", "preset/fedacs_static_epochs")


@EXPERIMENTS.register("fedacs/table5-epochs", paper="FedACS [3] table 5, fig. 10")
class Table5Epochs(Epochs, Table5):
    """Table 5 with T_m local epochs of client m instead of local steps, as App. I.3.1 says."""

    stem, base = "table5_epochs", ("reproduce/fedacs_table1", "preset/fedacs_dynamic_epochs")


DISTANCE = "global/distance_abs"
DIM = 10
SMOOTHED = "the curves are trailing moving averages over {} rounds"
_text_of = partial(listing, show="{:.3f}".format, sep=": ", end="; ")


def limit_measures(tail: int) -> dict[str, Callable[[RunRecord], float]]:
    """Measures of a run's last `tail` rounds: means of |x_r - x*| and x_r; noise: the standard error of x_r's mean."""
    names = {"distance": DISTANCE} | {f"x{j}": f"test/x{j}" for j in range(DIM)}

    def noise(run: RunRecord) -> float:
        columns = [run.column(f"test/x{j}")[-tail:] for j in range(DIM)]
        return math.sqrt(sum(np.var(x, ddof=1) / numbers.effective_count(x) for x in columns))

    means = {name: lambda run, m=metric: float(run.column(m)[-tail:].mean()) for name, metric in names.items()}
    return {"noise": noise, **means}


def data_of(config: Mapping[str, Any]) -> Any:
    from papers.probes.quadratics import TracedQuadratics
    from raylfl.config.load import load_config

    return TracedQuadratics(**load_config(config).resolved["data"]["init_args"])


def predicted_limit(config: Mapping[str, Any], tail: int) -> Floats | None:
    """The limit [d] of E[x_r] at the run's step size that eq. 39 of FedACS predicts, for f_m(x) = |x - E_m|^2 / 2.

    If the system changes, the matrices M and vectors v of eqs. 34-35 are averaged over the last `tail` rounds. None for
    methods and local steps that eq. 33 does not have.
    """
    from raylfl.config.load import load_config
    from raylfl.experiment.assemble import assemble
    from raylfl.runtime.round.plan import Planner
    from raylfl.theory.fedacs import mean_step
    from raylfl.theory.quadratic import QuadraticProblem

    loaded = load_config(config)
    experiment, rounds = assemble(loaded), loaded.resolved["rounds"]
    if experiment.rule.momentum or experiment.rule.lr_schedule.over_steps(1) != 1.0:
        return None
    centres = data_of(config).centres.double().numpy()
    count, dim = centres.shape
    hessians = np.broadcast_to(np.eye(dim), (count, dim, dim)).copy()
    problem = QuadraticProblem(hessians, centres, np.zeros(count), np.full(count, 1 / count))
    planner, known = Planner(experiment), dict[bytes, tuple[Floats, Floats]]()
    matrix, vector = np.zeros((dim, dim)), np.zeros(dim)
    for r in range(max(rounds - tail, 0), rounds):
        c, (steps, _) = planner.system(r), planner.steps(r, planner.everyone)
        shares = planner.expected_coefficients(c, {})
        if shares is None:
            return None
        eta, prox = experiment.algorithm.step_length(c), experiment.algorithm.proximal
        key = shares.tobytes() + steps.tobytes() + np.float64(eta).tobytes()
        if key not in known:
            known[key] = mean_step(problem, shares, steps, eta, prox)
        matrix, vector = matrix + known[key][0], vector + known[key][1]
    return np.asarray(np.linalg.solve(matrix, vector), dtype=np.float64)


class Quadratics(Lines):
    """Methods on the quadratics of fig. 4 in several systems; tail: the last rounds that are averaged."""

    scales, base, curves, cells = (), ("reproduce/fedacs_fig4",), (DISTANCE,), "label"
    panel, metrics = "system", (DISTANCE,)
    caption = "Over the last {0.tail} rounds. Predicted: the bias by eq. 39, at the step size of the runs."
    columns = tuple(
        Column(key, head, lambda value: number(0.0 if abs(value) < 1e-12 else value, 3), best, True)
        for key, head, best in (
            ("distance", "mean of |x - x*|", "min"),
            ("bias", "|mean of x - x*|", "min"),
            ("predicted", "predicted", None),
        )
    )
    tail: ClassVar[int]

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        (run,) = group.runs
        measured = {name: self.measure(run, name) or 0.0 for name in self.measures}
        mean = np.array([measured[f"x{j}"] for j in range(DIM)])
        optimum, predicted = data_of(run.config).optimum().numpy(), predicted_limit(run.config, self.tail)
        expected = np.full(DIM, np.nan) if predicted is None else predicted
        pairs = {"bias": (mean, optimum), "predicted": (expected, optimum), "off": (mean, expected)}
        apart = {name: float(np.linalg.norm(x - y)) for name, (x, y) in pairs.items()}
        return measured | apart | {"start": float(np.linalg.norm(optimum))}  # x_0 = 0

    def plot_of(self, lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {"start": lines["FedACS"]["start"], "limits": (0.02, 1.0), "window": self.options["rounds"] // 50}


@EXPERIMENTS.register("fedacs/fig4", paper="FedACS [3] fig. 4")
class Fig4(Quadratics):
    """Distance to the optimum of FedAvg with four local solvers and of FedACS, in three systems."""

    axes: ClassVar = {
        "system": {
            f"{name}: {text}": {"base": [f"preset/fedacs_fig4_{name}"]}
            for name, text in (("left", "equal clients"), ("middle", "static"), ("right", "redrawn every round"))
        },
        "method": {
            "FedAvg, SGD": {},
            "FedAvg, proximal": {"algorithm": {"name": "fedprox", "mu": 1.0, "aggregate": "anonymous_uniform"}},
            "FedAvg, lr decay": {"local.lr_schedule": {"name": "step_exponential", "decay": 0.995}},
            "FedAvg, momentum": {"local.momentum": 0.3},
            "FedACS": {"algorithm.name": "fedacs"},
        },
    }
    looks: ClassVar = dict(zip(axes["method"], ("fedavg", "fedprox", "decay", "fedavgm", "fedacs"), strict=True))
    options: ClassVar = {"rounds": 800}
    tail, stem, notes = 400, "fig4", [SMOOTHED.format(16)]
    measures: ClassVar = limit_measures(tail)

    def claims(self, values: Values) -> list[Claim]:
        left, *others = ({name: of["distance"] for name, of in lines.items()} for lines in values.values())
        text = "left: every method ends near the optimum (within 0.1)"
        claims = [Claim(text, max(left.values()) < 0.1, _text_of(left))]
        only = "only FedACS ends near the optimum (within 0.1; every other method more than twice as far)"
        for panel, distances in zip(("middle", "right"), others, strict=True):
            fedacs, other = distances.pop("FedACS"), min(distances.values())
            evidence = f"FedACS: {fedacs:.3f}; the nearest other: {other:.3f}"
            claims.append(Claim(f"{panel}: {only}", fedacs < 0.1 and other > 2 * fedacs, evidence))
        return [*claims, _prediction_claim(values)]


@EXPERIMENTS.register("fedacs/fig7", paper="FedACS [3] fig. 7")
class Fig7(Quadratics):
    """Bias of six methods with equal effective steps, in a static and a dynamic system."""

    axes: ClassVar = {
        "system": {name: {"base": [f"preset/fedacs_{name}"]} for name in ("static", "dynamic")},
        "method": {name: METHODS[name] for name in ("FedAvg", "c-a-FedAvg", "FedVARP", "FedNova", "FedAU", "FedACS")},
    }
    looks: ClassVar = {name: LOOKS[name] for name in axes["method"]}
    # M = 6 draws with replacement from p = w, as assumed in app. I.2
    options: ClassVar = {"rounds": 3000, "data.init_args.num_clients": 20, "participation.replace": True}
    options |= {"local.lr": 0.002, "algorithm.calibrate": True}
    tail, stem, notes = 2500, "fig7", [SMOOTHED.format(60)]
    measures: ClassVar = limit_measures(tail)

    def claims(self, values: Values) -> list[Claim]:
        claims = []
        for panel, lines in values.items():
            bias = {name: of["bias"] for name, of in lines.items()}
            low, high = bias["FedACS"], bias["FedAvg"]
            between = all(low < bias[name] < high for name in ("c-a-FedAvg", "FedVARP"))
            verdicts = {
                "FedACS has the smallest bias": min(bias.values()) == low,
                "FedAvg has the largest bias": max(bias.values()) == high,
                "the biases of c-a-FedAvg and FedVARP are between those of FedACS and FedAvg": between,
            }
            evidence = _text_of(ordered(bias))
            claims += [Claim(f"{panel}: {text}", holds, evidence) for text, holds in verdicts.items()]
        return [*claims, _prediction_claim(values)]


def _prediction_claim(values: Values) -> Claim:
    every = {f"{panel.split(':')[0]}, {name}": of for panel, lines in values.items() for name, of in lines.items()}
    predicted = {name: of for name, of in every.items() if math.isfinite(of["off"])}
    off = {name: of["off"] / max(of["noise"], 1e-9) for name, of in predicted.items()}
    worst = max(off, key=lambda name: off[name])
    text = "every method whose limit eq. 39 gives ends there (within three standard errors of its mean iterate)"
    evidence = f"{len(off)} runs; largest distance: {off[worst]:.1f} standard errors, {predicted[worst]['off']:.3f}"
    return Claim(text, off[worst] < 3, f"{evidence} ({worst})")
