"""The config's fixed groups as dataclasses: their fields are the keys, their types and defaults the schema.

Named groups (algorithm, partition, participation, link, topology) have the schema of the class they name; `model` and
`data` have Lightning's form. The annotation of a field states its limits; `__post_init__` checks limits that involve
several fields.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from raylfl.config.components import typed
from raylfl.core.local_optimizer import SGD, AdamW, LocalOptimizer
from raylfl.core.local_rule import LocalRule
from raylfl.errors import BadConfig, BadValue
from raylfl.heterogeneity.clock import Clock
from raylfl.heterogeneity.work import LocalWork
from raylfl.options import Doc, Ge, Gt, Le, Lt, OneOrMore, Options
from raylfl.registries import LOGGERS

Vectorize = Literal["auto", "always", "never"]
Patterns = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
Layout = Literal["auto", "contiguous", "channels_last", "batch_last"]  # of images and convolutions in memory
PAPERS = {"focus": "[1]", "sfl": "[2]"}  # papers whose theorems bound the step size, as docs/theory.md numbers them
LAYOUTS: tuple[Layout, ...] = ("contiguous", "channels_last", "batch_last")


def folder_name(key: str, value: str) -> None:
    """Checks that the value can be the name of one folder; raises BadValue."""
    if not value or set(value) & set("/\\\0\n") or value in (".", "..") or len(value.encode()) > 200:
        raise BadValue(key, got=repr(value)[:300], need="the name of one folder: no slashes, at most 200 bytes")


@dataclass
class TopConfig(Options):
    """The top-level keys outside the groups."""

    name: Annotated[str, Doc("the name of the experiment: runs go to `runs/<name>/<id>/`")] = "run"
    seed: Annotated[int, Ge(0), Doc("the seed of every random draw")] = 0
    rounds: Annotated[int, Ge(0), Doc("the number of communication rounds; may be raised when a run is resumed")] = 100
    dtype: Annotated[Literal["float32", "float64"], Doc("the dtype of parameters, data and all arithmetic")] = "float32"
    num_clients: (
        Annotated[int, Ge(1), Doc("the number of clients N; null: given by the partition (`natural`, `file`), else 10")]
        | None
    ) = None
    weights: Annotated[
        Literal["uniform", "data_size"],
        Doc("the importance weights `w_i` in `F = sum_i w_i f_i`: `uniform` is 1/N, `data_size` is `n_i/n`"),
    ] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        folder_name("name", self.name)


@dataclass
class ComponentConfig(Options):
    """`model` and `data`: a shipped `name` or any importable `class_path`, and its constructor's arguments."""

    name: Annotated[str | None, Doc("the name of a shipped class: [models.md](models.md)")] = None
    class_path: Annotated[str | None, Doc("any importable class instead of a name: `my_package.Net`")] = None
    init_args: Annotated[dict[str, Any], Doc("arguments of its constructor")] = field(default_factory=dict)
    # the class, factory or instance that class_path stands for, where workers cannot import it
    target: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.name is None) == (self.class_path is None):
            got = "nothing" if self.name is None else f"name {self.name} and class_path {self.class_path}"
            raise BadValue("", got=got, need="either a short name or a class_path")


@dataclass
class ModelConfig(ComponentConfig):
    """`model`: a component, and the parameters of it that are trained."""

    trainable: (
        Annotated[
            Patterns,
            Doc(
                "names of layers or parameters, with wildcards (`body.2`, `*lora*`): only these are trained and sent; "
                "null: all that the model trains"
            ),
        ]
        | None
    ) = None


@dataclass
class LocalConfig(LocalRule, LocalWork):
    """`local`: the local work of a client in a round."""

    lr: Annotated[
        float,
        Gt(0),
        Doc("the local learning rate eta; or `{theory: focus}`, `{theory: sfl}`: see lr_from"),
    ] = 0.1
    sampling: Annotated[
        Literal["reshuffle", "with_replacement"], Doc("a new order of the samples in every epoch, or independent draws")
    ] = "reshuffle"
    optimizer: Annotated[
        Literal["sgd", "adamw", "module"],
        Doc("module: the module's own `configure_optimizers`, which then sets lr, momentum and weight decay"),
    ] = "sgd"
    b1: Annotated[float, Ge(0), Lt(1), Doc("the decay of the first moment; used by `adamw`")] = 0.9
    b2: Annotated[float, Ge(0), Lt(1), Doc("the decay of the second moment; used by `adamw`")] = 0.999
    eps: Annotated[float, Gt(0), Doc("the term added to the root of the second moment; used by `adamw`")] = 1e-8
    optimizer_state: Annotated[
        Literal["fresh", "kept", "averaged"],
        Doc(
            "moments of the local optimizer: 0 in every round, kept by each client between its rounds, or sent with "
            "the model and averaged with weights `w_i`"
        ),
    ] = "fresh"
    buffers: Annotated[
        Literal["average", "local"],
        Doc("buffers such as BatchNorm statistics: averaged over the received clients, or local to each client"),
    ] = "average"
    lr_from: Annotated[
        str | None,
        Doc(
            "the theorem that gave lr; written for a config with `lr: {theory: focus}` (or `sfl`): the "
            "largest step size that the paper's theorem admits for the method ([theory.md](theory.md))"
        ),
    ] = None
    lr_by_theory: str | None = field(default=None, init=False)  # the paper of an lr that is still to be computed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr_from is not None and not self.lr_from.endswith(f": {self.lr!r}"):
            self.lr_from = None  # another lr was set since
        if self.optimizer != "sgd" and self.momentum:
            raise BadValue("momentum", got=self.momentum, need="0", hint=f"optimizer={self.optimizer} has its own")
        if self.optimizer == "module" and self.weight_decay:
            raise BadValue("weight_decay", got=self.weight_decay, need="0", hint="optimizer=module has its own")
        if self.optimizer_state != "fresh" and self.optimizer == "sgd" and not self.momentum:
            raise BadValue(
                "optimizer_state",
                got=self.optimizer_state,
                need="fresh",
                hint="sgd without momentum keeps nothing: set momentum, or another optimizer",
            )

    @classmethod
    def by_theory(cls, options: Mapping[str, Any]) -> LocalConfig:
        """The options with `lr: {theory: PAPER}`, a mapping; `raylfl.theory.rate` computes the number."""
        known = f"a number, or {{theory: PAPER}}, PAPER being one of {', '.join(PAPERS)}"
        wanted = options["lr"]
        if set(wanted) != {"theory"} or wanted["theory"] not in PAPERS:
            raise BadConfig(f"local.lr={dict(wanted)}, but must be {known}")
        made = typed(cls, {key: value for key, value in options.items() if key not in ("lr", "lr_from")}, "local")
        made.lr, made.lr_by_theory = float("nan"), wanted["theory"]
        return made

    def set_lr(self, lr: float, source: str | None) -> None:
        """Sets lr to a computed number; source: the theorem that it comes from."""
        self.lr, self.lr_by_theory = lr, None
        self.lr_from = None if source is None else f"{source}: {lr!r}"

    @property
    def inner(self) -> LocalOptimizer:
        """The local optimizer, unless it is the module's."""
        if self.optimizer == "adamw":
            return AdamW(self.b1, self.b2, self.eps, self.weight_decay)
        return SGD(self.momentum)


@dataclass
class EvalConfig(Options):
    """`eval`: the measurements and how often they are made; `every: 0` switches them off."""

    every: Annotated[int, Ge(0), Doc("rounds between evaluations; 0: never; the last round is always evaluated")] = 1
    batch_size: Annotated[int, Ge(1), Doc("samples per forward pass")] = 500
    global_: Annotated[
        bool, Doc("`global/loss`, `global/grad_norm`, `global/distance`: a pass over all clients' data")
    ] = field(default=False, metadata={"key": "global"})
    clients: Annotated[bool, Doc("accuracy on each client's own data: fairness")] = False
    random_clients: Annotated[
        int, Ge(0), Doc("clients drawn for an evaluation; loss and accuracy on their training data")
    ] = 0
    participants: Annotated[bool, Doc("loss and accuracy on the training data of the round's received clients")] = False
    per_client: Annotated[
        bool, Doc("rows get `per_client`: the training loss of each client, and with `clients` the metrics on its data")
    ] = False
    diversity: Annotated[
        bool,
        Doc(
            "`global/diversity`, its largest surrogate, and the client drift (FedAWARE, eqs. 3, 4, 6): the "
            "server holds the gradients of all clients at once"
        ),
    ] = False
    average: (
        Annotated[
            float,
            Gt(0),
            Le(1),
            Doc(
                "rho of the weighted mean of iterates sum_r rho^-(r+1) x_r, on which SFL's bounds are; 1: their plain "
                "mean; `raylfl theory` prints SFL's rho; `average/distance`, and with `global` `average/loss` and "
                "`average/gap`"
            ),
        ]
        | None
    ) = None
    inconsistency: Annotated[
        bool,
        Doc(
            "`inconsistency/chi2`, if it has a closed form, and `inconsistency/predicted_distance`, if the data "
            "give the optimum for any weights; costs almost nothing"
        ),
    ] = True


@dataclass
class StopConfig(Options):
    """`stop`: ends a run early, once a metric reaches its target or no longer improves."""

    metric: Annotated[str | None, Doc("a name in `metrics.jsonl`; null: all rounds are run")] = None
    target: Annotated[float | None, Doc("stop at this value, or at a better one")] = None
    patience: (
        Annotated[
            int,
            Ge(1),
            Doc("rounds without a new best value until the run stops; only rounds that measure the metric are checked"),
        ]
        | None
    ) = None
    mode: Annotated[
        Literal["auto", "max", "min"], Doc("the better direction; auto: max for accuracies, min for all others")
    ] = "auto"

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

    every: Annotated[int, Ge(0), Doc("rounds between checkpoints; 0: only at the end and when interrupted")] = 50
    keep: Annotated[int, Ge(1), Doc("checkpoints kept on disk")] = 2


@dataclass
class RuntimeConfig(Options):
    """`runtime`: where and how the work is carried out.

    Without failures no key changes the result of a run, except that `threads`, `precision`, `micro_cohort`,
    `vectorize`, `layout` and the device affect its last bits.
    """

    backend: Annotated[Literal["ray", "local"], Doc("local: the same code in the calling process")] = "ray"
    workers: (
        Annotated[int, Ge(1), Doc("worker actors; null: one per client, at most one per CPU slot (GPU share)")] | None
    ) = None
    cpus_per_worker: Annotated[float, Gt(0), Doc("CPUs that each worker reserves; fractions are allowed")] = 1.0
    gpus_per_worker: Annotated[float, Doc("GPUs that each worker reserves; 0.25: four workers share a GPU")] = 0.0
    address: Annotated[
        str | None, Doc("the address of a running cluster; null: `RAY_ADDRESS`, or else a new cluster")
    ] = None
    object_store_mb: (
        Annotated[
            int,
            Ge(80),
            Doc(
                "megabytes of the object store (Ray's minimum is 75) on a cluster started for the run; "
                "null: 0.3 of the memory, allocated as it is used"
            ),
        ]
        | None
    ) = None
    threads: Annotated[int, Ge(1), Doc("threads of torch in a worker")] = 1
    precision: Annotated[
        str | None, Doc("`32-true`, `64-true` or `bf16-mixed`, as in Lightning Fabric; null: the precision of dtype")
    ] = None
    micro_cohort: (
        Annotated[
            int,
            Ge(1),
            Doc(
                "largest number of clients per vectorised call; null: 32 to 128, more for smaller models, in a "
                "multiple of four calls (8 for 1,000 clients of a small model: lower it for more workers); on a GPU "
                "fewer calls, of at least 2^20 parameters"
            ),
        ]
        | None
    ) = None
    vectorize: Annotated[
        Vectorize, Doc("whether several clients run in one vectorised call; auto: by a fixed rule")
    ] = "auto"
    step: Annotated[
        Literal["auto", "recorded", "autograd"],
        Doc(
            "a client's local step: a replay of its recorded calls, with autograd's bits, or autograd; auto: recorded "
            "if possible; changes no result"
        ),
    ] = "auto"
    graphs: Annotated[
        Literal["auto", "never"],
        Doc("recorded steps on a GPU as CUDA graphs; auto: if these have the same bits; changes no result"),
    ] = "auto"
    compile: (
        Annotated[
            str,
            Doc(
                "`inductor` or another backend of `torch.compile`, for `training_step`: clients run one at a time, by "
                "autograd; workers import the compiler (seconds), and last bits are the backend's"
            ),
        ]
        | None
    ) = None
    layout: Annotated[
        Layout,
        Doc(
            "the memory order of images and convolutions: `channels_last` is up to twice as fast on a CPU, "
            "`batch_last` even faster for chains of few channels, such as LeNet-5; auto: by a fixed rule"
        ),
    ] = "auto"
    client_retries: Annotated[int, Ge(0), Doc("further attempts at a client's work")] = 2
    on_client_error: Annotated[
        Literal["fail", "drop"], Doc("the policy after these attempts; drop: the upload counts as lost")
    ] = "fail"
    on_nonfinite: Annotated[
        Literal["fail", "drop"], Doc("the policy for a non-finite upload; drop: it counts as lost")
    ] = "fail"
    client_timeout: (
        Annotated[
            float,
            Gt(0),
            Doc("the time limit of a worker in seconds; for its share of a round, and for each piece of an evaluation"),
        ]
        | None
    ) = None

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

    loggers: Annotated[
        OneOrMore, Doc("names (`csv`, `tensorboard`, `wandb`) and class paths; `metrics.jsonl` is always written")
    ] = field(default_factory=list)
    dir: Annotated[
        str, Doc("the folder of run directories; the environment variable `RAYLFL_RUNS` changes the default")
    ] = field(default_factory=lambda: os.environ.get("RAYLFL_RUNS", "runs"), metadata={"default": "runs"})
    id: Annotated[
        str | None,
        Doc("the id of the run, a folder name; null: date, time and seed; an existing id is never overwritten"),
    ] = None
    project: Annotated[str, Doc("the wandb project")] = "raylfl"
    report: Annotated[bool, Doc("a report page and a figure at the end of the run")] = True
    theory: Annotated[
        bool,
        Doc(
            "the report's curves have theorems' bounds, rates and limits as lines beside them ([theory.md](theory.md))"
        ),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.id is not None:
            folder_name("id", self.id)
        for logger in self.chosen:
            if logger.name is not None:
                LOGGERS.get(logger.name, "loggers")

    @property
    def chosen(self) -> list[ComponentConfig]:
        """The loggers as mappings; a string in `loggers` is a name, or a class path if it contains a dot."""
        groups = [g if isinstance(g, dict) else {"class_path" if "." in g else "name": g} for g in self.loggers]
        return [typed(ComponentConfig, group, "logging.loggers") for group in groups]

    @property
    def folder(self) -> Path:
        """The absolute path of `dir`; a run is in folder/<name>/<id>."""
        return Path(self.dir).expanduser().resolve()


FIXED_GROUPS: dict[str, type] = {
    "model": ModelConfig,
    "data": ComponentConfig,
    "local": LocalConfig,
    "system": Clock,
    "eval": EvalConfig,
    "stop": StopConfig,
    "checkpoint": CheckpointConfig,
    "runtime": RuntimeConfig,
    "logging": LoggingConfig,
}
NAMED_GROUPS = ("partition", "participation", "link", "topology", "algorithm")


def keys_text() -> str:
    """All keys of a config as text for `--help`, one line per group."""
    groups = {"": TopConfig, **FIXED_GROUPS}
    rows = [
        (group, ", ".join(f.metadata.get("key", f.name) for f in fields(cls) if f.init))
        for group, cls in groups.items()
    ]
    rows += [(group, "name (or class_path), and the options of that component") for group in NAMED_GROUPS]
    lines = [
        textwrap.fill(text, 110, initial_indent=f"  {group:15}", subsequent_indent=17 * " ") for group, text in rows
    ]
    head = "keys (group.key=value; docs/config.md has meanings, `raylfl schema` types, `raylfl list` names):"
    return "\n".join([head, *lines])
