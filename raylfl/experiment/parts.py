"""The parts of a run as plain objects: `Experiment`, and `WorkerSetup` for the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.groups.top import ModelConfig
from raylfl.config.load import Config
from raylfl.core.algorithm import Algorithm, State
from raylfl.core.arrays import Ints
from raylfl.core.local_optimizer import LocalOptimizer
from raylfl.core.local_rule import LocalRule
from raylfl.core.population import ClientShards, Population
from raylfl.core.returned import init_clients_of
from raylfl.core.samples import SampleSet
from raylfl.diagnostics.metric_names import Better, stated_directions
from raylfl.heterogeneity.links import Link
from raylfl.heterogeneity.participation.base import Participation
from raylfl.heterogeneity.partition.base import Split
from raylfl.heterogeneity.topologies.base import Graph
from raylfl.heterogeneity.work import LocalWork
from raylfl.heterogeneity.world import RunContext

# keys of broadcasts, uploads and client states that are hidden from algorithms
BUFFERS = "buffers"  # the module's buffers
MOMENTS = "moments"  # the state of the local optimizer
Probes = Mapping[str, tuple[Any, Sequence[str]]]  # kind of probe step -> its result, and lines for the user
MEAN = "mean_update"  # the updates of a round summed with the importance weights, for metrics
UNSEEN = (BUFFERS, MOMENTS, MEAN)  # uploads and sums that algorithms do not handle


class Initial(NamedTuple):
    """The initial parameters x [d], buffers [b] and local optimizer state (moments [m]) of a run.

    moments is empty if the optimizer state is fresh in every round (`local.optimizer_state`).
    """

    x: Tensor
    buffers: Tensor
    moments: Tensor


@dataclass(frozen=True)
class WorkerSetup:
    """The data and settings that a worker needs for any client and round; stored in shared memory once."""

    seed: int
    dtype: str
    model: ModelConfig
    algorithm: Algorithm
    rule: LocalRule
    sampling: str
    optimizer: str
    inner: LocalOptimizer  # not used if `optimizer` is the module's
    optimizer_state: str
    buffers: str
    population: Population
    shards: ClientShards
    train: SampleSet
    test: SampleSet | None
    eval_batch_size: int
    runtime: RuntimeConfig
    batch_size: int = 1  # the largest among the first thousand clients in the first round
    accumulate: int = 1  # the number of batches of a local step
    val: SampleSet | None = None
    drift: bool = False  # whether clients measure their drift in every local step
    merged: bool = False  # a single client trains on the data of all N clients
    assigned: bool = False  # each client is assigned to a worker, the only one that reads its samples
    nodes: tuple[str, ...] | None = None  # for each client: the Ray resource of nodes with its samples; None: any node
    probes: Probes = field(default_factory=dict)  # what the probe steps of the check have shown

    @property
    def local_buffers(self) -> bool:
        """Whether each client keeps its own buffers between rounds; false for a single client that owns all data."""
        return self.buffers == "local" and not self.merged

    @property
    def whole_buffers(self) -> bool:
        """Whether all persistent buffers travel by default, since each goes back to the client that changed it."""
        return self.buffers == "local" or self.merged

    def trained_on(self, client: int) -> Ints:
        """The indices of the samples on which a client trains."""
        return self.shards.indices if self.merged else self.shards[client]

    @property
    def probe_samples(self) -> Ints:
        """The indices of two training samples for a probe step, among the samples that this process can read."""
        return (self.shards.indices if self.train.owned is None else self.train.owned)[:2]

    def fresh_state(self, initial: Initial) -> State:
        """The state of a client before its first round: name -> tensor [1, ...]; may be empty."""
        state = init_clients_of(self.algorithm, initial.x, 1)
        if self.local_buffers and len(initial.buffers):
            state = {**state, BUFFERS: initial.buffers[None]}
        return {**state, MOMENTS: initial.moments[None]} if self.optimizer_state == "kept" else state

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class Optimum:
    """The optimum of a run.

    x: the minimiser [d] of F(x) = sum_i w_i f_i(x), with the run's importance weights w and client objectives f_i.
    of: a function weights [N] -> minimiser [d] of sum_i weights_i f_i; None if it is not known.
    """

    x: np.ndarray
    of: Callable[[np.ndarray], np.ndarray] | None


@dataclass(frozen=True)
class Experiment:
    """All parts of a run, built and checked before anything is started.

    logged: kind of probe step before the run -> names of the metrics that the module logged in this step. The kind
    `train` is a local step. The kinds `test`, `val` and `clients` are evaluations on the test set, the validation set
    and clients' training data. A kind that was not tried is missing. assignable: the kinds of devices (cpu, cuda) on
    which `placement: auto` may assign clients to workers, because no bit of the run would change. sources: the digests
    of the source of the user's classes (`runtime.records.sources`). logged_directions: metric, without the part before
    the slash -> its better direction, for the torchmetrics objects that the module logged in these evaluations.
    """

    config: Config
    labels: Ints | None  # labels of the training set [n]
    split: Split
    optimum: Optimum | None  # minimiser of F with the run's weights, if known
    world: RunContext
    algorithm: Algorithm
    participation: Participation
    link: Link
    topology: Graph
    work: LocalWork
    rule: LocalRule
    setup: WorkerSetup
    warnings: list[str]
    logged: dict[str, list[str]] = field(default_factory=dict)
    sources: dict[str, dict[str, str]] = field(default_factory=dict)
    logged_directions: dict[str, Better] = field(default_factory=dict)
    assignable: frozenset[str] = frozenset()
    client_names: tuple[str, ...] | None = None  # of a natural partition, if the data name their clients

    def on(self, gpus: float) -> Experiment:
        """The experiment on a machine or cluster with this number of GPUs; config.yaml keeps `auto`."""
        runtime = self.config.runtime.on(gpus)
        return replace(self, config=replace(self.config, runtime=runtime), setup=replace(self.setup, runtime=runtime))

    def placed(self, workers: int, nodes: int) -> Experiment:
        """The experiment on this many workers and cluster nodes, on which `placement: auto` may assign clients.

        With fewer workers than clients, a GPU runs clients side by side, which it does not if they are assigned.
        """
        device = "cuda" if self.config.runtime.gpus else "cpu"
        suffices = workers >= self.clients or (nodes > 1 and device == "cpu")
        assigned = self.setup.assigned or (suffices and device in self.assignable)
        return replace(self, setup=replace(self.setup, assigned=assigned))

    @property
    def directions(self) -> dict[str, Better]:
        """The better directions that the config and the logged torchmetrics objects state; the config's come first."""
        return {**self.logged_directions, **stated_directions(self.config.resolved)}

    @property
    def work_is_known(self) -> bool:
        """Whether |a_i|_1 is the work of a client's local steps: of SGD, from momentum 0, with unclipped gradients."""
        plain = self.setup.optimizer == "sgd" and self.setup.optimizer_state == "fresh"
        return plain and self.rule.clip_norm is None

    @property
    def minimiser(self) -> Tensor | None:
        """The minimiser x* [d] of F as a new tensor; None if it is not known."""
        return None if self.optimum is None else torch.from_numpy(self.optimum.x.copy())

    @property
    def clients(self) -> int:
        """The number of clients N of the partition."""
        return self.setup.population.count
