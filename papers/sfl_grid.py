"""SFL [2] (Li & Lyu, NeurIPS 2023), image classification: the cells of its tables, their search, the published numbers.

PFL is the paper's name for parallel federated learning, that is FedAvg. C: classes per client; K: local steps.

The authors' logs, `sfl_test_accuracy.csv.gz`, have one row per measurement; of several logs of a cell, one after the
other, the last one is used, as in table 10. The ledgers keep an excerpt per cell.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from papers.grid import Axis, Grid, Point, by
from papers.ledger import Row, thin_out, write_lines
from papers.ledger_rows import LedgerRows
from papers.numbers import ACCURACY, effective_count, measurements, path_of, stat_of, table_of
from papers.run_cache import RunCache
from raylfl.report.derived import Stat, last_k, score
from raylfl.report.runs import Group

METHODS = {"PFL": "fedavg", "SFL": "sfl"}
NORMS: dict[str, dict[str, int | None]] = {  # table 7: max norm of each method
    "no clipping": {"PFL": None, "SFL": None},
    "loose": {"PFL": 20, "SFL": 100},
    "medium": {"PFL": 10, "SFL": 50},
    "tight": {"PFL": 5, "SFL": 20},
}
GRID = {"PFL": (0.01, 0.03, 0.1, 0.3), "SFL": (0.003, 0.01, 0.03, 0.1)}
RATES = tuple(sorted({*GRID["PFL"], *GRID["SFL"]}))
SEARCH_SEED = 1234  # App. G.3; one of the three seeds of the tables, so that its runs are reused there
CLOSE = 0.03  # App. G.3: learning rates within 3 points of the best are tried in the long run
VGG = "CIFAR-10, VGG-9"
CLIENTS = {"eval.participants": True, "eval.random_clients": 10}  # what figures 12 to 15 measure besides
SYMBOLS = "C: classes per client, K: local steps"


def last_rounds(rounds: int) -> int:
    """The number of last rounds over which accuracies are averaged."""
    return 100 if rounds >= 4000 else 40 if rounds >= 1000 else 20


def task(data: str, model: str, smoke: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A value of the axis `task`; smoke: the options with which the network fits 8x8 digits."""
    clients = {"num_clients": 1000} if data == "cinic10" else {}
    return {"base": [f"data/{data}", f"model/{model}"], "smoke": smoke or {}, "paper": clients}


UPSCALED, NARROW = {"data.init_args.upscale": 28}, {"model.init_args.width": 8}
SMALL_VGG = {"data.init_args.upscale": 32} | NARROW
TASKS: Axis = {
    "MNIST, logistic": task("mnist", "logistic"),
    # dropout: in the authors' code; the paper does not mention it
    "MNIST, MLP": task("mnist", "mlp") | {"model.init_args.dropout": 0.5},
    "MNIST, MLP without dropout": task("mnist", "mlp"),
    "MNIST, LeNet-5": task("mnist", "lenet5", UPSCALED),
    "FMNIST, LeNet-5": task("fashion_mnist", "lenet5", UPSCALED),
    "FMNIST, CNN": task("fashion_mnist", "cnn_sfl"),
    VGG: task("cifar10", "vgg9", SMALL_VGG),
    "CIFAR-10, ResNet-18": task("cifar10", "resnet18", NARROW),
    "CINIC-10, VGG-9": task("cinic10", "vgg9", SMALL_VGG),
    "CINIC-10, ResNet-18": task("cinic10", "resnet18", NARROW),
}
# the network as printed in the paper -> the published row, which comes from the paper's code
VARIANTS = {"MNIST, MLP without dropout": "MNIST, MLP"}


def axes(
    tasks: Sequence[str] = (VGG,), steps: Sequence[int] = (5, 20, 50), norms: Sequence[str] = ("medium",)
) -> dict[str, Axis]:
    return {
        "stage": {0: {}, 1: {}},
        "task": {name: TASKS[name] for name in tasks},
        "classes": {c: {"partition.classes": c} for c in (1, 2)},
        "steps": {k: {"local.steps": k} for k in steps},
        "norm": {name: {} for name in norms},
        "method": {name: {"algorithm.name": key} for name, key in METHODS.items()},
        "lr": {lr: {"local.lr": lr} for lr in RATES},
    }


REFERENCE = "reference.jsonl"
LAST, MORE = 40, 400  # the paper averages 40 rounds; 400 rounds have ten times as many values
FILE = "published/sfl_test_accuracy.csv.gz"
SOURCE = "the authors' public logs, seed 1234 (published/sfl_test_accuracy.csv.gz)"
Series = list[tuple[int, float]]  # (round from 0, accuracy as a fraction)
CellRates = Mapping[Point, Sequence[float]]  # cell -> learning rates


def log_of(cell: Mapping[str, Any], rounds: int) -> Series | None:
    """The authors' log of a cell with this many rounds, if it has one. Raises DataMissing without the file of logs."""
    names = (file.partition("/")[2] for file in TASKS[cell["task"]]["base"])  # of data and model
    key = (*names, cell["method"], cell["classes"], cell["steps"], float(cell["lr"]), cell["clip"] or 0, rounds)
    return _logs(path_of(FILE)).get(key)


@cache
def _logs(path: Path) -> dict[tuple[Any, ...], Series]:
    logs: dict[tuple[Any, ...], Series] = {}
    for line in measurements(path):
        numbers = (int(line["classes"]), int(line["local_steps"]), float(line["lr"]), int(line["clip_norm"]))
        series = logs.setdefault((line["data"], line["model"], line["method"], *numbers, int(line["rounds"])), [])
        r = int(line["round"]) - 1
        if series and r <= series[-1][0]:
            series.clear()
        series.append((r, float(line["test_accuracy_percent"]) / 100))
    return logs


@dataclass(frozen=True)
class Reference:
    """An excerpt of a cell's log; last: number of last rounds -> [mean, std, values, effective number of values]."""

    cell: dict[str, Any]
    source: str
    last: dict[str, list[float]]
    curve: list[list[float]]


class Images(Grid):
    """Cells of task, C, K, max norm and method, at the learning rates of a grid.

    rounds, rates: scale -> the rounds of each stage, and the grid of each method. measured: options of the last stage.
    """

    shares, tuned, seeds, smoke_seeds = "sfl/images", "lr", (SEARCH_SEED, 0, 1), 2
    base: ClassVar[Sequence[str]] = ("reproduce/sfl_images",)
    axes: ClassVar = axes()
    small: ClassVar[dict[str, Sequence[Any]]] = {"steps": (5,)}
    smoke: ClassVar = {"partition.min_size": 2}
    rounds: ClassVar[Mapping[str, Sequence[int]]] = {"smoke": (100,), "paper": (1000,)}
    rates: ClassVar[dict[str, Any]] = {"smoke": {"PFL": (0.1, 0.3), "SFL": (0.03, 0.1)}, "paper": GRID}
    measured: ClassVar[Mapping[str, Any]] = {}
    stem: ClassVar[str]

    def has(self, point: Point, scale: str) -> bool:
        return point.stage < len(self.rounds[scale]) and point.lr in self.rates[scale][point.method]

    def label(self, point: Point) -> str:
        clients = ", clients" if point.get("clients") else ""
        return f"{point.task}, {row_name(point)}, {point.method}, lr {point.lr}, clip {clip(point)}{clients}"

    def place(self, point: Point) -> str:
        return f"{point.task}, {row_name(point)} {point.method}"

    def cell(self, point: Point) -> dict[str, Any]:
        norm = clip(point)
        values = {key: point[key] for key in ("task", "classes", "steps", "method", "lr")}
        values["clip"] = None if norm is None else float(norm)
        if len(self.rounds["paper"]) > 1:
            values["rounds"] = self.rounds["paper"][point.stage]
        return values | ({"clients": True} if point.get("clients") else {})

    def options_of(self, point: Point, scale: str) -> dict[str, Any]:
        rounds = self.rounds[scale]
        measured = self.measured if point.stage == len(rounds) - 1 else {}
        return {"local.clip_norm": clip(point), "rounds": rounds[point.stage], **measured}

    def headline(self, point: Point, row: Row) -> tuple[str, float | None, float | None]:
        number = self.printed(point).get(point.lr)
        return row.metric, row.last.get(str(last_rounds(row.rounds))), number.mean if number else None

    def printed(self, cell: Point) -> Mapping[float, Stat]:
        """Learning rate -> the paper's accuracy in a cell, in tables 7 and 10."""
        return published_rates().get((published_task(cell), cell.classes, cell.steps, cell.method, clip(cell)), {})

    def chosen(self, cache: RunCache) -> dict[Point, list[float]]:
        """Cell -> the learning rates of its grid that `--only` selects."""
        points = [point for point in self.points(cache.scale) if point.stage == 0 and not point.get("clients")]
        cache.only.check(points)
        first = {point.without("stage", "clients"): point for point in points if cache.only.keeps(**point)}
        return {cell: list(rates) for cell, rates in by(first, "lr").items()}

    def sweep(
        self, cache: RunCache, rates: CellRates, stage: int = 0, seeds: Sequence[int] = (SEARCH_SEED,), **values: Any
    ) -> dict[Point, dict[float, Group]]:
        """Cell -> learning rate -> runs of a stage; values: of further axes."""
        points = [cell.but(stage=stage, lr=lr, **values) for cell, tried in rates.items() for lr in tried]
        groups = self.groups(cache, points, seeds)
        return by({point.without("stage", *values): group for point, group in groups.items()}, "lr")

    def accuracies(self, cache: RunCache) -> dict[Point, dict[float, Stat]]:
        """Cell -> learning rate -> accuracy of the first stage, on one seed."""
        last, runs = last_rounds(self.rounds[cache.scale][0]), self.sweep(cache, self.chosen(cache))
        return {cell: {lr: last_k(group, ACCURACY, last) for lr, group in of.items()} for cell, of in runs.items()}

    def logs_of(self, cache: RunCache, groups: Mapping[Point, Group]) -> dict[Point, Reference]:
        """The excerpts of the authors' logs of published cells."""
        if not isinstance(cache, LedgerRows):
            return {}
        rounds = {point: group.runs[0].config["rounds"] for point, group in groups.items()}
        refs = references(cache.folder, [(self.cell(point), rounds[point]) for point in groups])
        return {point: refs[name] for point in groups if (name := key(self.cell(point))) in refs}

    def search(self, cache: RunCache, left: CellRates) -> dict[Point, float]:
        """The best learning rate of each cell on one seed, of those `left`: App. G.3; none without all their runs."""
        rates, stages = dict(left), self.rounds[cache.scale]
        for stage, rounds in enumerate(stages):
            tried = {cell: values for cell, values in rates.items() if len(values) > 1}
            groups = self.sweep(cache, tried, stage) if tried else {}
            for cell, values in tried.items():
                if len(groups.get(cell, {})) < len(values):
                    del rates[cell]
                else:
                    rates[cell] = close(groups[cell], last_rounds(rounds), CLOSE if stage + 1 < len(stages) else 0.0)
        return {cell: values[0] for cell, values in rates.items()}


def close(groups: Mapping[float, Group], last: int, margin: float) -> list[float]:
    """The learning rates whose accuracy over the last rounds is within a margin of the best one's."""
    scores = {lr: score(group, ACCURACY, last) for lr, group in groups.items()}
    return [lr for lr, value in scores.items() if value >= max(scores.values()) - margin]


def clip(cell: Point) -> int | None:
    return NORMS[cell.norm][cell.method]


def row_name(cell: Point) -> str:
    return f"C={cell.classes}, K={cell.steps}"


def published_task(cell: Point) -> str:
    """The task in the paper's tables, whose numbers come from the networks of the authors' code."""
    return VARIANTS.get(cell.task, str(cell.task))


def published(name: str) -> dict[tuple[Any, ...], str]:
    """(task, C, K, method, max norm) -> text, from a file of published numbers; without the keys that it lacks."""
    texts = {}
    for row, method, steps in product(table_of(name), METHODS, (5, 20, 50)):
        task = [row["task"]] if "task" in row else []
        norm = [NORMS[row["norm"]][method]] if "norm" in row else []
        texts[(*task, int(row["classes"]), steps, method, *norm)] = row[f"{method} K={steps}"]
    return texts


def published_best() -> dict[tuple[Any, ...], Stat]:
    """(task, C, K, method) -> accuracy in tables 3 and 11: mean ± std over 3 seeds and the last rounds."""
    return {key: stat_of(text) for key, text in published("sfl_best").items()}


def published_rates() -> dict[tuple[Any, ...], dict[float, Stat]]:
    """(task, C, K, method, max norm) -> learning rate -> accuracy in tables 7 and 10: one seed, 1000 rounds."""
    cells = published("sfl_rates").items()
    return {key: dict(zip(GRID[key[3]], map(stat_of, texts.split()), strict=True)) for key, texts in cells}


def references(folder: Path, cells: Iterable[tuple[dict[str, Any], int]]) -> dict[str, Reference]:
    """Key of a cell -> excerpt of its log, also in the ledger's file; cells: with their rounds."""
    path = folder / REFERENCE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    excerpts = {key(ref.cell): ref for ref in (Reference(**json.loads(line)) for line in lines)}
    known = set(excerpts)
    for cell, rounds in cells:
        if key(cell) in known or (series := log_of(cell, rounds)) is None:
            continue
        last = {}
        for window in (LAST, MORE):
            values = np.array([value for r, value in series if r >= rounds - window])
            numbers = (values.mean(), values.std(ddof=1), len(values), effective_count(values))
            last[str(window)] = [round(float(number), 6) for number in numbers]
        excerpts[key(cell)] = Reference(cell, SOURCE, last, [[r, round(value, 4)] for r, value in thin_out(series, 50)])
    if set(excerpts) != known:
        write_lines(path, [asdict(excerpts[name]) for name in sorted(excerpts)])
    return excerpts


def key(cell: Mapping[str, Any]) -> str:
    return json.dumps([str(cell[name]) for name in ("task", "classes", "steps", "method", "lr", "clip")])
