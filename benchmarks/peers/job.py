"""What a side is told, and how it reports: one JSON line after each round, with the time and, when due, the accuracy.

`python -m benchmarks.peers.sides.NAME WORKLOAD FOLDER ROUNDS WORKERS OUT`
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.peers.data import Arrays, load
from benchmarks.peers.definitions import DEFINITIONS, PeerWorkload
from benchmarks.peers.networks import NETWORKS


@dataclass(frozen=True)
class Job:
    """A run of one side. folder: of the arrays; workers: threads, processes or clients at once; out: the report."""

    workload: PeerWorkload
    folder: Path
    rounds: int
    workers: int
    out: Path

    @staticmethod
    def of(arguments: list[str]) -> Job:
        name, folder, rounds, workers, out = arguments
        return Job(DEFINITIONS[name], Path(folder), int(rounds), int(workers), Path(out))

    @property
    def arrays(self) -> Arrays:
        return load(self.folder)

    def network(self) -> nn.Module:
        """The network of the workload, with the initial weights of seed 0."""
        torch.manual_seed(0)
        return NETWORKS[self.workload.name]()

    def tested(self, round: int) -> bool:
        """Whether the model is evaluated after this round; rounds count from 1."""
        return round % self.workload.test_every == 0 or round == self.rounds

    def report(self, round: int, accuracy: float | None = None) -> None:
        """Appends a line to the report."""
        with self.out.open("a") as file:
            file.write(json.dumps({"round": round, "time": time.time(), "accuracy": accuracy}) + "\n")


def job() -> Job:
    """The job in the command line."""
    return Job.of(sys.argv[1:])


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of correct classes, in evaluation mode."""
    model.eval()
    return float((model(x).argmax(1) == y).float().mean())


def import_torchvision() -> None:
    """Imports torchvision for a peer, which may be built for GPUs beside a torch for CPUs.

    Then its import fails for two operators, which no peer calls here: they are declared.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
