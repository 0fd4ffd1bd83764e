"""The workloads: sizes on which other platforms were measured, with synthetic data, so that nothing is downloaded."""

from dataclasses import dataclass
from typing import Any

RATE = 0.05  # learning rate of all local steps


@dataclass(frozen=True)
class Workload:
    """One setting, for raylfl (`config`) and for the floor. model: the name of a shipped model, or a class path."""

    name: str
    title: str
    model: str
    shape: tuple[int, int, int]
    samples: int
    clients: int
    cohort: int
    steps: int
    batch_size: int

    def config(self, rounds: int, **runtime: Any) -> dict[str, Any]:
        """The config of a run of `rounds` rounds, without evaluation and checkpoints."""
        return {
            "name": f"bench-{self.name}",
            "rounds": rounds,
            "num_clients": self.clients,
            "model": {"class_path" if "." in self.model else "name": self.model},
            "data": {
                "name": "synthetic_images",
                "init_args": {"shape": list(self.shape), "num_train": self.samples, "num_test": 100},
            },
            "participation": {"name": "uniform", "size": self.cohort},
            "local": {"steps": self.steps, "batch_size": self.batch_size, "lr": RATE},
            "eval": {"every": 0, "inconsistency": False},
            "checkpoint": {"every": 0},
            "logging": {"report": False},
            "runtime": runtime,
        }


WORKLOADS = {
    w.name: w
    for w in (
        Workload("W1", "LeNet-5, 500 clients, 10 a round", "lenet5", (1, 28, 28), 30_000, 500, 10, 5, 20),
        Workload("W2", "CNN 16-32-64-500, 32 clients, 8 a round", "cnn_focus", (3, 32, 32), 12_800, 32, 8, 3, 128),
        Workload("W3", "logistic, 1000 clients, 100 a round", "logistic", (1, 28, 28), 60_000, 1000, 100, 5, 20),
    )
}

USERS = {  # W1 to W3 with modules as a user writes them, and two more
    w.name: w
    for w in (
        Workload("W1", "a user's LeNet-5", "benchmarks.users.LeNet", (1, 28, 28), 30_000, 500, 10, 5, 20),
        Workload("W2", "a user's CNN", "benchmarks.users.CNN", (3, 32, 32), 12_800, 32, 8, 3, 128),
        Workload("W3", "a user's logistic", "benchmarks.users.Logistic", (1, 28, 28), 60_000, 1000, 100, 5, 20),
        Workload("W4", "residual, 40 of 1,000", "benchmarks.users.Residual", (1, 28, 28), 60_000, 1000, 40, 5, 20),
        Workload("W5", "transformer encoder, 10 of 500", "benchmarks.users.Rows", (1, 28, 28), 30_000, 500, 10, 3, 20),
    )
}
