"""The config's fixed groups as dataclasses: their fields are the keys, their types and defaults the schema.

Named groups (algorithm, partition, participation, link) have the schema of the class they name; `model` and
`data` have Lightning's form. What a value must satisfy is its annotation; what no annotation says stands in
`__post_init__`.
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
    """Raises BadValue where the value cannot be the name of one folder."""
    if not value or set(value) & set("/\\\0\n") or value in (".", "..") or len(value.encode()) > 200:
        raise BadValue(key, got=repr(value)[:300], need="the name of one folder: no slashes, at most 200 bytes")


@dataclass
class TopConfig(Options):
    """What stands at the top level beside the groups."""

    name: str = "run"  # of the experiment: runs/<name>/<id>
    seed: Annotated[int, Ge(0), Doc("every random draw is keyed by it")] = 0
    rounds: Annotated[int, Ge(0), Doc("the number of communication rounds")] = 100
    dtype: Literal["float32", "float64"] = "float32"
    # null: as many as the data says (partition natural or file)
    num_clients: Annotated[int, Ge(1), Doc("the number of clients N")] | None = None
    weights: Literal["uniform", "data_size"] = "uniform"  # importance w_i: uniform 1/N, data_size n_i/n

    def __post_init__(self) -> None:
        super().__post_init__()
        folder_name("name", self.name)


@dataclass
class ComponentConfig(Options):
    """`model` and `data`: a shipped `name`, or any importable `class_path`; and its constructor's arguments."""

    name: str | None = None
    class_path: str | None = None
    init_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.name is None) == (self.class_path is None):
            got = "nothing" if self.name is None else f"name {self.name} and class_path {self.class_path}"
            raise BadValue("", got=got, need="a short name or a class_path, one of the two")


@dataclass
class LocalConfig(LocalRule, LocalWork):
    """`local`: what a client does in a round."""

    sampling: Literal["reshuffle", "with_replacement"] = "reshuffle"  # epoch-wise without replacement, or with
    optimizer: Literal["sgd", "module"] = "sgd"  # sgd, or module: the module's own configure_optimizers
    # of BatchNorm and the like: averaged over the received, or local to each client
    buffers: Literal["average", "local"] = "average"


@dataclass
class EvalConfig(Options):
    """`eval`: what is measured, and how often; every 0 switches a measurement off."""

    # on the test set; the last round always is
    every: Annotated[int, Ge(0), Doc("rounds between evaluations (0: never)")] = 1
    batch_size: Annotated[int, Ge(1), Doc("samples a forward pass")] = 500
    global_: bool = field(default=False, metadata={"key": "global"})  # loss and gradient of F, distance
    clients: bool = False  # accuracy of every client's own data: fairness
    # accuracy on the training data of so many random clients
    random_clients: Annotated[int, Ge(0), Doc("clients drawn for an evaluation")] = 0
    participants: bool = False  # accuracy on the training data of the round's cohort
    inconsistency: bool = True  # chi2(w||Omega), and where it leads, from p, q and a of all N clients


@dataclass
class StopConfig(Options):
    """`stop`: ends a run before its last round, once a metric is good enough or no longer improves."""

    metric: str | None = None  # a name in metrics.jsonl; null: all rounds are run
    target: float | None = None  # stop at this value, or at a better one
    # stop after so many
    patience: Annotated[int, Ge(1), Doc("rounds without a new best value")] | None = None
    mode: Literal["auto", "max", "min"] = "auto"  # max, min, or auto: max for accuracies, min for all others

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = self.target is not None or self.patience is not None
        if rules and self.metric is None:
            raise BadValue("metric", got=None, need="the metric that target and patience look at", hint="test/accuracy")
        if self.metric is not None and not rules:
            raise BadValue("metric", got=self.metric, need="with a target or a patience beside it")


@dataclass
class CheckpointConfig(Options):
    """`checkpoint`: how often the state is put on disk, and how many stay."""

    # 0: also when interrupted
    every: Annotated[int, Ge(0), Doc("rounds between checkpoints (0: only at the end)")] = 50
    keep: Annotated[int, Ge(1), Doc("checkpoints kept on disk")] = 2


@dataclass
class RuntimeConfig(Options):
    """`runtime`: where the work happens; of it only what docs/config.md names can change a result's last bits."""

    backend: Literal["ray", "local"] = "ray"  # or local: the same code in the calling process
    # null: one a client, at most one a CPU slot (or GPU share)
    workers: Annotated[int, Ge(1), Doc("worker actors")] | None = None
    cpus_per_worker: Annotated[float, Gt(0)] = 1.0
    gpus_per_worker: float = 0.0  # fractions share a GPU
    address: str | None = None  # a running cluster; null: RAY_ADDRESS, else an own one
    # of an own cluster; null: 0.3 of the memory, taken as it is used
    object_store_mb: Annotated[int, Ge(80), Doc("megabytes (Ray's own minimum is 75)")] | None = None
    # part of what defines the bits
    threads: Annotated[int, Ge(1), Doc("threads of torch in a worker")] = 1
    precision: str | None = None  # Fabric's: 32-true, 64-true, bf16-mixed; null: that of dtype
    # at most so many; null: a fixed rule on d
    micro_cohort: Annotated[int, Ge(1), Doc("clients a vectorised call")] | None = None
    vectorize: Vectorize = "auto"  # auto: a fixed rule
    # recorded: a replay of the step's calls; autograd; auto: recorded where it has the same bits
    step: Literal["auto", "recorded", "autograd"] = "auto"
    # of images in memory; auto: a fixed rule
    layout: Layout = "auto"
    # before on_client_error applies
    client_retries: Annotated[int, Ge(0), Doc("further attempts at a client's work")] = 2
    on_client_error: Literal["fail", "drop"] = "fail"  # drop: its upload counts as lost
    on_nonfinite: Literal["fail", "drop"] = "fail"
    # for its share of a round
    client_timeout: Annotated[float, Gt(0), Doc("seconds a worker may take")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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


@dataclass
class LoggingConfig(Options):
    """`logging`: where records go beside metrics.jsonl, which is always written."""

    loggers: OneOrMore = field(default_factory=list)  # of csv, tensorboard, wandb
    dir: str = field(default_factory=lambda: os.environ.get("RAYLFL_RUNS", "runs"))
    id: str | None = None  # of the run; null: seed, date and time
    project: str = "raylfl"  # wandb's
    report: bool = True  # a page and a picture when the run ends

    def __post_init__(self) -> None:
        super().__post_init__()
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
