"""Components as a user's file or another's package has them; the tests write this file elsewhere."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from lightning import LightningModule

from raylfl.algorithms.fedprox import FedProx
from raylfl.components.options import Doc, Ge
from raylfl.heterogeneity.links.base import Link
from raylfl.heterogeneity.links.bernoulli import Bernoulli as Lossy
from raylfl.heterogeneity.participation.availability import Bernoulli as Coins
from raylfl.heterogeneity.participation.base import Draw, Participation
from raylfl.heterogeneity.participation.uniform import Uniform
from raylfl.heterogeneity.partition.proportions import Dirichlet


@dataclass
class Sprung(FedProx):
    """A spring to the round's model."""

    mu: Annotated[float, Ge(0), Doc("the stiffness")] = 0.5


@dataclass
class Some(Uniform):
    pass


@dataclass
class Awake(Coins):
    pass


@dataclass
class Skewed(Dirichlet):
    pass


@dataclass
class Radio(Lossy):
    pass


@dataclass
class Unchecked(Participation):
    """A process without the method that every process needs."""


@dataclass
class Pairs(Participation):
    """Clients r and r + 1; it defines the one method that a process needs."""

    def attempt(self, r, world, attempt):
        return Draw.once(np.array([r % world.count, (r + 1) % world.count]))


@dataclass
class Half(Link):
    """Loses half of the uploads; it defines the one method that a link needs."""

    def failure(self, r, clients, world):
        return np.full(len(clients), 0.5)


@dataclass
class Shrinking(FedProx):
    """Computes an option from itself."""

    shrink: float = 0.25
    gamma: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        self.gamma *= self.shrink


class Other:
    pass


class Net(LightningModule):
    """A linear model."""

    def __init__(self, bias: bool = True):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10, bias=bias))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])


class Points:
    """Points of ten kinds."""

    def __init__(self, count: int = 80):
        draw = torch.Generator().manual_seed(0)
        self.targets = torch.arange(count) % 10
        self.train_dataset = torch.utils.data.TensorDataset(torch.randn(count, 64, generator=draw), self.targets)


class Lines:
    """Writes rounds as lines."""

    def __init__(self, run_dir: str, word: str = "round"):
        self.file, self.word = open(f"{run_dir}/lines.txt", "a"), word  # noqa: SIM115

    def log(self, metrics):
        print(self.word, metrics["round"], file=self.file)

    def close(self):
        print("end", file=self.file)
        self.file.close()
