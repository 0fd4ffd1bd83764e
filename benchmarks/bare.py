"""`python -m benchmarks.bare FILE ROUNDS`: W1 as a bare Ray program of two actors with torch, without a platform.

It writes a line to FILE after every round. `processes.py` compares start-up and memory of `raylfl run` with it.
"""

import sys

import ray
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import WORKLOADS

W1 = WORKLOADS["W1"]


@ray.remote(num_cpus=1)
class Trainer:
    """An actor that runs local SGD for given clients on its own LeNet-5."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = nn.Sequential(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 120),
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
            for t in range(W1.steps):
                batch = shard[torch.arange(t * W1.batch_size, (t + 1) * W1.batch_size) % len(shard)]
                optimizer.zero_grad()
                F.cross_entropy(self.model(images[batch]), labels[batch]).backward()
                optimizer.step()
            total += nn.utils.parameters_to_vector(self.model.parameters()).detach()
        return total


def main(path: str, rounds: int) -> None:
    ray.init(num_cpus=2, log_to_driver=False)
    trainers = [Trainer.remote() for _ in range(2)]
    data = ray.put((torch.randn(W1.samples, *W1.shape), torch.randint(0, 10, (W1.samples,))))
    shards = torch.randperm(W1.samples).chunk(W1.clients)
    x = ray.get(trainers[0].initial.remote())
    for _ in range(rounds):
        cohort = [shards[k] for k in torch.randperm(W1.clients)[: W1.cohort].tolist()]
        here = ray.put(x)
        sums = [t.train.remote(here, data, cohort[w :: len(trainers)]) for w, t in enumerate(trainers)]
        x = sum(ray.get(sums)) / W1.cohort
        with open(path, "a") as file:
            file.write("round\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
