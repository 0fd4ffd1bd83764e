"""`python -m benchmarks.bare FILE`: W1 as a bare Ray program of two actors with torch, without any platform; a line in
FILE for every round. What start-up and memory of `raylfl run` are compared with.
"""

from __future__ import annotations

import sys

import ray
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIENTS, COHORT, STEPS, BATCH, SAMPLES, ROUNDS = 500, 10, 5, 20, 30_000, 60


@ray.remote(num_cpus=1)
class Trainer:
    """Local SGD for the clients it is given, on a LeNet-5 of its own."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )

    def initial(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def train(self, x: Tensor, data: tuple[Tensor, Tensor], shards: list[Tensor]) -> Tensor:
        """The sum of the clients' parameters after their local steps from x."""
        total, (images, labels) = torch.zeros_like(x), data
        for shard in shards:
            nn.utils.vector_to_parameters(x, self.model.parameters())
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
            for t in range(STEPS):
                batch = shard[torch.arange(t * BATCH, (t + 1) * BATCH) % len(shard)]
                optimizer.zero_grad()
                F.cross_entropy(self.model(images[batch]), labels[batch]).backward()
                optimizer.step()
            total += nn.utils.parameters_to_vector(self.model.parameters()).detach()
        return total


def main(path: str) -> None:
    ray.init(num_cpus=2, log_to_driver=False)
    trainers = [Trainer.remote() for _ in range(2)]
    data = ray.put((torch.randn(SAMPLES, 1, 28, 28), torch.randint(0, 10, (SAMPLES,))))
    shards = torch.randperm(SAMPLES).chunk(CLIENTS)
    x = ray.get(trainers[0].initial.remote())
    for _ in range(ROUNDS):
        cohort = [shards[k] for k in torch.randperm(CLIENTS)[:COHORT].tolist()]
        here = ray.put(x)
        sums = [t.train.remote(here, data, cohort[w :: len(trainers)]) for w, t in enumerate(trainers)]
        x = sum(ray.get(sums)) / COHORT
        with open(path, "a") as file:
            file.write("round\n")


if __name__ == "__main__":
    main(sys.argv[1])
