"""The config's fixed groups as dataclasses: their fields are the keys, their types and defaults the schema.

Named groups (algorithm, partition, participation, link) have the schema of the class they name; `model` and
`data` have Lightning's form. What a value must satisfy stands in `__post_init__`, next to its declaration.
"""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from raylfl.errors import BadValue
from raylfl.heterogeneity.clock import Clock
from raylfl.heterogeneity.work import LocalWork
from raylfl.options import OneOrMore

STEPS = ("recorded", "autograd")  # how a client's local step is taken
LAYOUTS = ("contiguous", "channels_last", "batch_last")  # of images and convolutions in memory


def _at_least(group: Any, key: str, least: int, meaning: str) -> None:
    value = getattr(group, key)
    if value is not None and value < least:
        raise BadValue(key, got=value, need=f">= {least}, {meaning}")


def _one_of(group: Any, key: str, *choices: str) -> None:
    value = getattr(group, key)
    if value not in choices:
        raise BadValue(key, got=value, need=f"one of {', '.join(choices)}")


def folder_name(key: str, value: str) -> None:
    """Raises BadValue where the value cannot be the name of one folder."""
    if not value or set(value) & set("/\\\0\n") or value in (".", "..") or len(value.encode()) > 200:
        raise BadValue(key, got=repr(value)[:300], need="the name of one folder: no slashes, at most 200 bytes")


@dataclass
class TopConfig:
    """What stands at the top level beside the groups."""

    name: str = "run"  # of the experiment: runs/<name>/<id>
    seed: int = 0
    rounds: int = 100
    dtype: str = "float32"
    num_clients: int | None = None  # null: as many as the data says (partition natural or file)
    weights: str = "uniform"  # importance w_i: uniform 1/N, data_size n_i/n

    def __post_init__(self) -> None:
        _at_least(self, "rounds", 0, "the number of communication rounds")
        _at_least(self, "num_clients", 1, "the number of clients N")
        _at_least(self, "seed", 0, "every random draw is keyed by it")
        _one_of(self, "dtype", "float32", "float64")
        _one_of(self, "weights", "uniform", "data_size")
        folder_name("name", self.name)


@dataclass
class ComponentConfig:
    """`model` and `data`: a shipped `name`, or any importable `class_path`; and its constructor's arguments."""

    name: str | None = None
    class_path: str | None = None
    init_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.name is None) == (self.class_path is None):
            got = "nothing" if self.name is None else f"name {self.name} and class_path {self.class_path}"
            raise BadValue("", got=got, need="a short name or a class_path, one of the two")


@dataclass
class ScheduleConfig:
    """`local.lr_schedule`; see raylfl.core.local.Schedule."""

    name: str = "constant"
    decay: float = 1.0
    period: float = 1.0


@dataclass
class LocalConfig:
    """`local`: what a client does in a round; see raylfl.heterogeneity.work and raylfl.core.local."""

    steps: Any = None  # K: a number or a value per client; 5 where neither steps nor epochs is given
    epochs: Any = None
    batch_size: Any = 32  # samples, `full`, or {uniform: [lo, null]} up to n_i
    dynamic: bool = False  # steps and batch sizes redrawn every round
    lr: float = 0.1
    lr_schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    sampling: str = "reshuffle"  # epoch-wise without replacement, or with_replacement
    optimizer: str = "sgd"  # sgd, or module: the module's own configure_optimizers
    buffers: str = "average"  # of BatchNorm and the like: averaged over the received, or local to each client

    def __post_init__(self) -> None:
        _one_of(self, "buffers", "average", "local")
        _one_of(self, "sampling", "reshuffle", "with_replacement")
        _one_of(self, "optimizer", "sgd", "module")
        LocalWork(self.steps, self.epochs, self.batch_size, self.dynamic)


@dataclass
class EvalConfig:
    """`eval`: what is measured, and how often; every 0 switches a measurement off."""

    every: int = 1  # rounds between evaluations on the test set; the last round always is
    batch_size: int = 500
    global_: bool = field(default=False, metadata={"key": "global"})  # loss and gradient of F, distance
    clients: bool = False  # accuracy of every client's own data: fairness
    random_clients: int = 0  # accuracy on the training data of so many random clients
    participants: bool = False  # accuracy on the training data of the round's cohort
    inconsistency: bool = True  # chi2(w||Omega), and where it leads, from p, q and a of all N clients

    def __post_init__(self) -> None:
        _at_least(self, "every", 0, "rounds between evaluations (0: never)")
        _at_least(self, "batch_size", 1, "samples a forward pass")
        _at_least(self, "random_clients", 0, "clients drawn for an evaluation")


@dataclass
class StopConfig:
    """`stop`: ends a run before its last round, once a metric is good enough or no longer improves."""

    metric: str | None = None  # a name in metrics.jsonl; null: all rounds are run
    target: float | None = None  # stop at this value, or at a better one
    patience: int | None = None  # stop after so many rounds without a new best value
    mode: str = "auto"  # max, min, or auto: max for accuracies, min for all others

    def __post_init__(self) -> None:
        _one_of(self, "mode", "auto", "max", "min")
        _at_least(self, "patience", 1, "rounds without a new best value")
        rules = self.target is not None or self.patience is not None
        if rules and self.metric is None:
            raise BadValue("metric", got=None, need="the metric that target and patience look at", hint="test/accuracy")
        if self.metric is not None and not rules:
            raise BadValue("metric", got=self.metric, need="with a target or a patience beside it")


@dataclass
class CheckpointConfig:
    """`checkpoint`: how often the state is put on disk, and how many stay."""

    every: int = 50  # rounds; 0: only at the end and when interrupted
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least(self, "every", 0, "rounds between checkpoints (0: only at the end)")
        _at_least(self, "keep", 1, "checkpoints kept on disk")


@dataclass
class RuntimeConfig:
    """`runtime`: where the work happens; of it only what docs/config.md names can change a result's last bits."""

    backend: str = "ray"  # or local: the same code in the calling process
    workers: int | None = None  # null: one a client, at most one a CPU slot (or GPU share)
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0  # fractions share a GPU
    address: str | None = None  # a running cluster; null: RAY_ADDRESS, else an own one
    object_store_mb: int | None = None  # of an own cluster; null: 0.3 of the memory, taken as it is used
    threads: int = 1  # of torch in a worker: part of what defines the bits
    precision: str | None = None  # Fabric's: 32-true, 64-true, bf16-mixed; null: that of dtype
    micro_cohort: int | None = None  # clients a vectorised call holds at most; null: a fixed rule on d
    vectorize: str = "auto"  # auto (a fixed rule), always, never
    step: str = "auto"  # recorded: a replay of the step's calls; autograd; auto: recorded where it has the same bits
    layout: str = "auto"  # of images in memory: auto (a fixed rule), contiguous, channels_last, batch_last
    client_retries: int = 2  # further attempts at a client's work before on_client_error applies
    on_client_error: str = "fail"  # or drop: its upload counts as lost
    on_nonfinite: str = "fail"  # or drop
    client_timeout: float | None = None  # seconds a worker may take for its share of a round

    def __post_init__(self) -> None:
        _one_of(self, "backend", "ray", "local")
        _one_of(self, "vectorize", "auto", "always", "never")
        _one_of(self, "layout", "auto", *LAYOUTS)
        _one_of(self, "step", "auto", *STEPS)
        _one_of(self, "on_client_error", "fail", "drop")
        _one_of(self, "on_nonfinite", "fail", "drop")
        _at_least(self, "workers", 1, "worker actors")
        _at_least(self, "threads", 1, "threads of torch in a worker")
        _at_least(self, "micro_cohort", 1, "clients a vectorised call")
        _at_least(self, "client_retries", 0, "further attempts")
        _at_least(self, "object_store_mb", 80, "megabytes (Ray's own minimum is 75)")
        if not self.cpus_per_worker > 0:
            raise BadValue("cpus_per_worker", got=self.cpus_per_worker, need="> 0")
        if self.gpus_per_worker < 0 or (self.gpus_per_worker > 1 and self.gpus_per_worker % 1):
            raise BadValue("gpus_per_worker", got=self.gpus_per_worker, need="0, a fraction of one, or whole GPUs")
        precisions = ("32-true", "64-true", "bf16-mixed", None)
        if self.precision not in precisions:
            raise BadValue(
                "precision",
                got=self.precision,
                need="one of 32-true, 64-true, bf16-mixed or null",
                hint="16-mixed needs a gradient scaler, which federated local steps do not define",
            )
        if self.client_timeout is not None and not self.client_timeout > 0:
            raise BadValue("client_timeout", got=self.client_timeout, need="> 0 seconds, or null")


@dataclass
class LoggingConfig:
    """`logging`: where records go beside metrics.jsonl, which is always written."""

    loggers: OneOrMore = field(default_factory=list)  # of csv, tensorboard, wandb
    dir: str = field(default_factory=lambda: os.environ.get("RAYLFL_RUNS", "runs"))
    id: str | None = None  # of the run; null: seed, date and time
    project: str = "raylfl"  # wandb's
    report: bool = True  # a page and a picture when the run ends

    def __post_init__(self) -> None:
        if self.id is not None:
            folder_name("id", self.id)
        for logger in self.loggers:
            if logger not in ("csv", "tensorboard", "wandb"):
                raise BadValue("loggers", got=logger, need="of csv, tensorboard, wandb")

    @property
    def folder(self) -> Path:
        """`dir`, absolute: a run is in folder/<name>/<id>."""
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
    """All keys of a config, a line a group, for `--help`."""
    groups = {"": TopConfig, **FIXED_GROUPS}
    rows = [(group, ", ".join(f.metadata.get("key", f.name) for f in fields(cls))) for group, cls in groups.items()]
    rows += [(group, "name (or class_path), and the options of what it names") for group in NAMED_GROUPS]
    lines = [
        textwrap.fill(text, 110, initial_indent=f"  {group:15}", subsequent_indent=17 * " ") for group, text in rows
    ]
    return "\n".join(["keys (group.key=value; docs/config.md explains them, `raylfl list` has the names):", *lines])
