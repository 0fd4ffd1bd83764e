"""The workloads of other platforms' own benchmarks, as they define them."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.workloads import Workload

CIFAR10 = {  # mean and standard deviation of the training images
    "mean": [0.4914, 0.4822, 0.4465],
    "std": [0.2470, 0.2435, 0.2616],
}
SOURCES = {  # name of the data: (a file below RAYLFL_DATA, `data` of a config); the first that exists is used
    "CIFAR-10": {
        "CIFAR-10": ("cifar-10-batches-py", {"name": "cifar10", "init_args": {"augment": False, **CIFAR10}}),
        "CIFAR-10 (JPEG copies)": (
            "cifar10-jpeg.tgz",
            {"name": "image_folder", "init_args": {"path": "cifar10-jpeg.tgz", **CIFAR10}},
        ),
    },
    "MNIST": {"MNIST": ("MNIST", {"name": "mnist"})},
}


@dataclass(frozen=True)
class PeerWorkload(Workload):
    """A workload with the hyperparameters of its benchmark. All clients have samples / clients samples.

    data: a key of SOURCES. test_every: rounds between evaluations on all test images. published: times
    that others published, with their hardware.
    """

    lr: float
    epochs: int
    rounds: int
    test_every: int
    data: str
    published: str
    partition: dict[str, Any] = field(default_factory=lambda: {"name": "iid"})

    def run_config(self, data: dict[str, Any], rounds: int, workers: int) -> dict[str, Any]:
        """raylfl's config on real data. workers: 1 runs in process, more are Ray workers."""
        runtime = {"backend": "local"} if workers == 1 else {"workers": workers}
        return {
            "name": f"peers-{self.name}",
            "rounds": rounds,
            "num_clients": self.clients,
            "model": {"class_path": self.model},
            "data": data,
            "partition": self.partition,
            "participation": {"name": "uniform", "size": self.cohort},
            "local": {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr},
            "eval": {"every": min(self.test_every, rounds)},
            "checkpoint": {"every": 0},
            "logging": {"report": False},
            "runtime": runtime,
        }


DEFINITIONS = {
    w.name: w
    for w in (
        PeerWorkload(
            *("pfl", "pfl-research's CIFAR-10", "benchmarks.networks.Pfl"),
            *((3, 32, 32), 50_000, 1000, 50, 5, 10, 0.1, 1, 20, 10, "CIFAR-10"),
            "nothing on CPUs; its paper trains 1,500 rounds on one A100",
        ),
        PeerWorkload(
            *("blaze", "BlazeFL's CIFAR-10", "benchmarks.networks.Tutorial"),
            *((3, 32, 32), 50_000, 100, 100, 50, 50, 0.1, 5, 5, 5, "CIFAR-10"),
            "5 rounds on 32 cores and 4 Quadro RTX 6000: BlazeFL 25 to 169 s, Flower 66 to 379 s (its repository)",
            {"name": "shards", "shards_per_client": 2},
        ),
        PeerWorkload(
            *("flute", "FLUTE's logistic on MNIST", "benchmarks.networks.SigmoidLogistic"),
            *((1, 28, 28), 60_000, 1000, 10, 6, 10, 0.03, 1, 100, 20, "MNIST"),
            "100 rounds on a CPU: FLUTE 200 s, Flower 1.0.0 1,814 s (FLUTE's README, LEAF's shards)",
        ),
    )
}
