"""The config's fixed groups as dataclasses: their fields are the keys, their types and defaults the schema.

Named groups (algorithm, partition, participation, link) have the schema of the class they name; `model` and `data` have
Lightning's form. The annotation of a field states its limits; `__post_init__` checks limits that involve several
fields.
"""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from raylfl.core.local_rule import LocalRule
from raylfl.errors import BadValue
from raylfl.heterogeneity.clock import Clock
from raylfl.heterogeneity.work import LocalWork
from raylfl.options import Doc, Ge, Gt, OneOrMore, Options

Vectorize = Literal["auto", "always", "never"]
Layout = Literal["auto", "contiguous", "channels_last", "batch_last"]  # of images and convolutions in memory
LAYOUTS: tuple[Layout, ...] = ("contiguous", "channels_last", "batch_last")


def folder_name(key: str, value: str) -> None:
    """Checks that the value can be the name of one folder; raises BadValue."""
    if not value or set(value) & set("/\\\0\n") or value in (".", "..") or len(value.encode()) > 200:
        raise BadValue(key, got=repr(value)[:300], need="the name of one folder: no slashes, at most 200 bytes")


@dataclass
class TopConfig(Options):
    """The top-level keys outside the groups."""

    name: str = "run"  # of the experiment: runs/<name>/<id>
    seed: Annotated[int, Ge(0), Doc("every random draw is keyed by it")] = 0
    rounds: Annotated[int, Ge(0), Doc("the number of communication rounds")] = 100
    dtype: Literal["float32", "float64"] = "float32"
    # null: the number that partition natural or file gives
    num_clients: Annotated[int, Ge(1), Doc("the number of clients N")] | None = None
    weights: Literal["uniform", "data_size"] = "uniform"  # importance w_i: uniform 1/N, data_size n_i/n

    def __post_init__(self) -> None:
        super().__post_init__()
        folder_name("name", self.name)


@dataclass
class ComponentConfig(Options):
    """`model` and `data`: a shipped `name` or any importable `class_path`, and its constructor's arguments."""

    name: str | None = None
    class_path: str | None = None
    init_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.name is None) == (self.class_path is None):
            got = "nothing" if self.name is None else f"name {self.name} and class_path {self.class_path}"
            raise BadValue("", got=got, need="either a short name or a class_path")


@dataclass
class LocalConfig(LocalRule, LocalWork):
    """`local`: what a client does in a round."""

    sampling: Literal["reshuffle", "with_replacement"] = "reshuffle"  # epoch-wise without replacement, or with
    optimizer: Literal["sgd", "module"] = "sgd"  # sgd, or module: the module's own configure_optimizers
    # buffers such as BatchNorm statistics: averaged over the received clients, or local to each client
    buffers: Literal["average", "local"] = "average"


@dataclass
class EvalConfig(Options):
    """`eval`: the measurements and how often they are made; `every: 0` switches them off."""

    # on the test set; the last round is always evaluated
    every: Annotated[int, Ge(0), Doc("rounds between evaluations (0: never)")] = 1
    batch_size: Annotated[int, Ge(1), Doc("samples a forward pass")] = 500
    global_: bool = field(default=False, metadata={"key": "global"})  # loss and gradient of F, distance
    clients: bool = False  # accuracy of every client's own data: fairness
    # accuracy on the training data of this many random clients
    random_clients: Annotated[int, Ge(0), Doc("clients drawn for an evaluation")] = 0
    participants: bool = False  # accuracy on the training data of the round's cohort
    inconsistency: bool = True  # chi2(w||Omega) and the surrogate's optimum, from p, q and a of all N clients


@dataclass
class StopConfig(Options):
    """`stop`: ends a run early, once a metric reaches its target or no longer improves."""

    metric: str | None = None  # a name in metrics.jsonl; null: all rounds are run
    target: float | None = None  # stop at this value or a better one
    # stop after this many
    patience: Annotated[int, Ge(1), Doc("rounds without a new best value")] | None = None
    mode: Literal["auto", "max", "min"] = "auto"  # max, min, or auto: max for accuracies, min for all others

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = self.target is not None or self.patience is not None
        if rules and self.metric is None:
            raise BadValue("metric", got=None, need="the metric for target and patience", hint="test/accuracy")
        if self.metric is not None and not rules:
            raise BadValue("metric", got=self.metric, need="given together with target or patience")


@dataclass
class CheckpointConfig(Options):
    """`checkpoint`: how often the state is saved, and how many checkpoints are kept."""

    # 0: at the end, also when interrupted
    every: Annotated[int, Ge(0), Doc("rounds between checkpoints (0: only at the end)")] = 50
    keep: Annotated[int, Ge(1), Doc("checkpoints kept on disk")] = 2


@dataclass
class RuntimeConfig(Options):
    """`runtime`: where and how the work is carried out; docs/config.md names the keys that can change bits."""

    backend: Literal["ray", "local"] = "ray"  # local: the same code in the calling process
    # null: one per client, at most one per CPU slot (or GPU share)
    workers: Annotated[int, Ge(1), Doc("worker actors")] | None = None
    cpus_per_worker: Annotated[float, Gt(0)] = 1.0
    gpus_per_worker: float = 0.0  # workers with fractions share a GPU
    address: str | None = None  # a running Ray cluster; null: RAY_ADDRESS, or else a cluster started for the run
    # of a cluster started for the run; null: 0.3 of the memory, allocated as it is used
    object_store_mb: Annotated[int, Ge(80), Doc("megabytes (Ray's own minimum is 75)")] | None = None
    # the bits of a run depend on it
    threads: Annotated[int, Ge(1), Doc("threads of torch in a worker")] = 1
    precision: str | None = None  # Fabric's: 32-true, 64-true, bf16-mixed; null: that of dtype
    # upper limit; null: a fixed rule on d
    micro_cohort: Annotated[int, Ge(1), Doc("clients a vectorised call")] | None = None
    vectorize: Vectorize = "auto"  # auto: a fixed rule
    # recorded: a replay of the step's calls; autograd; auto: recorded where it has the same bits
    step: Literal["auto", "recorded", "autograd"] = "auto"
    # memory order of images; auto: a fixed rule
    layout: Layout = "auto"
    # afterwards on_client_error applies
    client_retries: Annotated[int, Ge(0), Doc("further attempts at a client's work")] = 2
    on_client_error: Literal["fail", "drop"] = "fail"  # drop: its upload counts as lost
    on_nonfinite: Literal["fail", "drop"] = "fail"
    # for its part of a round
    client_timeout: Annotated[float, Gt(0), Doc("seconds a worker may take")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus_per_worker < 0 or (self.gpus_per_worker > 1 and self.gpus_per_worker % 1):
            raise BadValue("gpus_per_worker", got=self.gpus_per_worker, need="0, a fraction of one GPU, or whole GPUs")
        precisions = ("32-true", "64-true", "bf16-mixed", None)
        if self.precision not in precisions:
            raise BadValue(
                "precision",
                got=self.precision,
                need="one of 32-true, 64-true, bf16-mixed or null",
                hint="16-mixed needs a gradient scaler, which federated local steps do not define",
            )


@dataclass
class LoggingConfig(Options):
    """`logging`: records beside metrics.jsonl, which is always written."""

    loggers: OneOrMore = field(default_factory=list)  # of csv, tensorboard, wandb
    dir: str = field(default_factory=lambda: os.environ.get("RAYLFL_RUNS", "runs"))
    id: str | None = None  # id of the run; null: seed, date and time
    project: str = "raylfl"  # W&B project
    report: bool = True  # write a report page and a figure when the run ends

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.id is not None:
            folder_name("id", self.id)
        for logger in self.loggers:
            if logger not in ("csv", "tensorboard", "wandb"):
                raise BadValue("loggers", got=logger, need="of csv, tensorboard, wandb")

    @property
    def folder(self) -> Path:
        """The absolute path of `dir`; a run is in folder/<name>/<id>."""
        return Path(self.dir).expanduser().resolve()


FIXED_GROUPS: dict[str, type] = {
    "model": ComponentConfig,
    "data": ComponentConfig,
    "local": LocalConfig,
    "system": Clock,
    "eval": EvalConfig,
    "stop": StopConfig,
    "checkpoint": CheckpointConfig,
    "runtime": RuntimeConfig,
    "logging": LoggingConfig,
}
NAMED_GROUPS = ("partition", "participation", "link", "algorithm")


def keys_text() -> str:
    """All keys of a config as text for `--help`, one line per group."""
    groups = {"": TopConfig, **FIXED_GROUPS}
    rows = [(group, ", ".join(f.metadata.get("key", f.name) for f in fields(cls))) for group, cls in groups.items()]
    rows += [(group, "name (or class_path), and the options of that component") for group in NAMED_GROUPS]
    lines = [
        textwrap.fill(text, 110, initial_indent=f"  {group:15}", subsequent_indent=17 * " ") for group, text in rows
    ]
    return "\n".join(["keys (group.key=value; docs/config.md explains them, `raylfl list` has the names):", *lines])
