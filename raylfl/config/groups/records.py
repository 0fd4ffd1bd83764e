"""The keys of the config groups `eval`, `stop`, `checkpoint` and `logging`: measurements and records of a run."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from raylfl.components.options import Doc, Ge, Gt, Le, OneOrMore, Options
from raylfl.config.components import make_typed
from raylfl.config.groups.top import ComponentConfig, folder_name
from raylfl.config.registries import LOGGERS
from raylfl.config.urls import check_url, is_url, staging
from raylfl.diagnostics.metric_names import check_target
from raylfl.errors import BadValue


@dataclass
class EvalConfig(Options):
    """`eval`: the measurements of a run, and the number of rounds between evaluations.

    `every: 0` switches evaluations off. No evaluation is needed for `drift`, `inconsistency` and the training losses of
    `per_client`, which are measured in every round.
    """

    every: Annotated[int, Ge(0), Doc("rounds between evaluations; 0: never; the last round is always evaluated")] = 1
    batch_size: Annotated[int, Ge(1), Doc("samples per forward pass")] = 500
    global_: Annotated[
        bool, Doc("`global/loss`, `global/grad_norm`, `global/distance`: a pass over all clients' data")
    ] = field(default=False, metadata={"key": "global"})
    clients: Annotated[bool, Doc("accuracy on each client's own data: fairness")] = False
    nodes: Annotated[
        bool,
        Doc(
            "metrics of every node's model on the test set, for methods without a server: N evaluations; "
            "`per_client` has each node's metrics, and its distances from the mean and the optimum"
        ),
    ] = False
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
    drift: Annotated[
        bool,
        Doc(
            "client drift, consensus error and the server's step, the quantities of the papers' lemmas: "
            "`train/local_drift`, `update/drift`, `update/consensus`, `update/step`"
        ),
    ] = False
    average: Annotated[
        float | None,
        Gt(0),
        Le(1),
        Doc(
            "also measure the average of all models so far; 1: the plain average; below 1: later models count "
            "more, as rho^-(r+1) (SFL's bounds need the value that `raylfl theory` prints)"
        ),
    ] = None
    inconsistency: Annotated[
        bool,
        Doc(
            "`inconsistency/chi2`, if it has a closed form, and `inconsistency/predicted_distance`, if the data "
            "give the optimum for any weights; costs almost nothing"
        ),
    ] = True


@dataclass
class StopConfig(Options):
    """`stop`: ends a run early, once a metric reaches its target or no longer improves.

    A run that it stops is finished: `stopped_early` in its summary has the reason. A resume with another target or
    patience continues it.
    """

    metric: Annotated[str | None, Doc("a name in `metrics.jsonl`; null: all rounds are run")] = None
    target: Annotated[float | None, Doc("stop at this value, or at a better one; 0.95 for an accuracy of 95 %")] = None
    patience: Annotated[
        int | None,
        Ge(1),
        Doc("rounds without a new best value until the run stops; only rounds that measure the metric are checked"),
    ] = None
    mode: Annotated[
        Literal["auto", "min", "max"],
        Doc("the better direction of the metric; auto: as stated in `metrics`, or known"),
    ] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = self.target is not None or self.patience is not None
        if rules and self.metric is None:
            raise BadValue("metric", got=None, need="the metric for target and patience", hint="test/accuracy")
        if self.metric is not None and not rules:
            raise BadValue("metric", got=self.metric, need="given together with target or patience")
        if self.metric is not None:
            check_target(self.target, self.metric)


@dataclass
class CheckpointConfig(Options):
    """`checkpoint`: how often the state is saved, and how many checkpoints are kept."""

    every: Annotated[int, Ge(0), Doc("rounds between checkpoints; 0: only at the end and when interrupted")] = 50
    keep: Annotated[int, Ge(1), Doc("checkpoints kept on disk")] = 2
    best: Annotated[
        str | None,
        Doc("a metric, such as val/accuracy: `best.pt` is the model of the round with its best value; null: no file"),
    ] = None


def in_uploaded_folder() -> bool:
    """Whether the working directory is the temporary copy that Ray makes of a job's uploaded folder."""
    try:
        return "working_dir_files" in Path.cwd().parts
    except FileNotFoundError:  # deleted
        return False


def default_folder() -> str:
    """`RAYLFL_RUNS`, or else `runs`; in a job `~/raylfl-runs`, because its working directory is deleted."""
    return os.environ.get("RAYLFL_RUNS") or ("~/raylfl-runs" if in_uploaded_folder() else "runs")


@dataclass
class LoggingConfig(Options):
    """`logging`: the folder of the runs, and records in addition to metrics.jsonl, which is always written."""

    loggers: Annotated[
        OneOrMore[str | dict[str, Any]],  # names, or groups with a class_path
        Doc("names (`csv`, `tensorboard`, `wandb`) and class paths; `metrics.jsonl` is always written"),
    ] = field(default_factory=list)
    dir: Annotated[
        str,
        Doc(
            "the folder of run directories, or a URL (`s3://bucket/runs`) to which they are copied "
            "([running.md](running.md#runs-at-a-url)); the environment variable `RAYLFL_RUNS` changes the default, and "
            "in a Ray job it is `~/raylfl-runs`"
        ),
    ] = field(default_factory=default_folder, metadata={"default": "runs"})
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
        if is_url(self.dir):
            check_url(self.dir)
        elif in_uploaded_folder() and self.folder.is_relative_to(Path.cwd()):
            hint = "Ray deletes the working directory of a job"
            raise BadValue("dir", got=self.dir, need="a folder outside the working directory, or a URL", hint=hint)
        if self.id is not None:
            folder_name("id", self.id)
        for logger in self.chosen:
            if logger.name is not None:
                LOGGERS.get(logger.name, "loggers")

    @property
    def chosen(self) -> list[ComponentConfig]:
        """The entries of `loggers`; a string is a name, or a class path if it contains a dot."""
        groups = [g if isinstance(g, dict) else {"class_path" if "." in g else "name": g} for g in self.loggers]
        return [make_typed(ComponentConfig, group, "logging.loggers") for group in groups]

    @property
    def folder(self) -> Path:
        """The folder of the runs, folder/<name>/<id>: `dir`, or the local staging folder if `dir` is a URL."""
        return staging(self.dir) if is_url(self.dir) else Path(self.dir).expanduser().resolve()

    @property
    def url(self) -> str | None:
        """The value of `dir` if it is a URL, otherwise None. A run is copied to url/<name>/<id>."""
        return self.dir if is_url(self.dir) else None

    def check_shared(self) -> None:
        """Checks that other processes can reach `dir`; raises BadValue for a URL `memory://...`."""
        if self.dir.startswith("memory://"):
            hint = "memory:// is the memory of one process; runtime.backend=local, without a sweep, has one"
            raise BadValue(
                "logging.dir", got=self.dir, need="a folder, or a URL that every process can reach", hint=hint
            )
