"""What travels between the round loop and the workers: plain values, safe to send and to repeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from raylfl.algorithms.base import Algorithm, State
from raylfl.config.schema import ComponentConfig, RuntimeConfig
from raylfl.core.local import LocalRule
from raylfl.core.population import Population
from raylfl.core.samples import SampleSet, Shards

POOL = -1  # the imaginary client that owns everybody's data (centralized)
BUFFERS = "buffers"  # the key under which a module's buffers travel beside an algorithm's own tensors


@dataclass(frozen=True)
class WorkerSetup:
    """Everything a worker needs for any client in any round; put into shared memory once."""

    seed: int
    dtype: str
    model: ComponentConfig
    algorithm: Algorithm
    rule: LocalRule
    sampling: str
    optimizer: str
    buffers: str
    population: Population
    shards: Shards
    train: SampleSet
    test: SampleSet | None
    eval_batch_size: int
    runtime: RuntimeConfig

    @property
    def local_buffers(self) -> bool:
        """Whether clients keep the module's buffers to themselves; the imaginary one that owns all data does not."""
        return self.buffers == "local" and not self.algorithm.pooled

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class Task:
    """The local work of a micro-cohort in one round: a pure function of this, the broadcast and its states."""

    round: int
    clients: tuple[int, ...]
    steps: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    a_norm: tuple[float, ...]
    lr: float

    @property
    def load(self) -> int:
        """Sample gradients to compute, the measure by which work is shared out."""
        return int(np.dot(self.steps, self.batch_sizes))


class Report(NamedTuple):
    """What the server learns of one client's work beside its upload."""

    client: int
    loss: float  # mean over its local steps; nan where it made none
    last_loss: float  # the last finite one
    gradients: int  # sample gradients computed
    exchanged: int = 0  # floats of activations, and as many of their gradients (split learning)
    client_half: int | None = None  # parameters of the client's half (split learning), all there is to hand over
    finite: bool = True
    error: str | None = None  # the traceback that ended it


@dataclass
class Outcome:
    """A task's result; `up` rows and `own` entries align with `clients`. Empty where it failed."""

    task: Task
    reports: list[Report]
    up: State = field(default_factory=dict)
    own: list[Any] = field(default_factory=list)  # handles of client states

    @property
    def failed(self) -> bool:
        return any(report.error for report in self.reports)


Fault = Callable[[str, int], None]  # (phase, round): a place where tests may strike
