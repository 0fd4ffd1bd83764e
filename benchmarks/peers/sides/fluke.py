# ruff: noqa: E402 (torchvision first)
"""fluke, by its Python interface: clients in turn in one process; one thread."""

import torch

from benchmarks.peers.job import Job, import_torchvision, job

import_torchvision()

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver


class Report(FederationObserver, ServerObserver):
    """Reports the rounds, with the accuracy when there is one."""

    def __init__(self, run: Job):
        self.run, self.accuracy = run, None

    def server_evaluation(self, round, eval_type, evals, **kwargs):  # type: ignore[no-untyped-def]
        self.accuracy = evals.get("accuracy")

    def end_round(self, round: int) -> None:
        self.run.report(round, self.accuracy)
        self.accuracy = None


def loader(x: torch.Tensor, y: torch.Tensor, batch_size: int, shuffle: bool) -> FastDataLoader:
    return FastDataLoader(x, y, num_labels=10, batch_size=batch_size, shuffle=shuffle)


def train(run: Job) -> None:
    workload, data = run.workload, run.arrays
    torch.set_num_threads(run.workers)
    env = FlukeENV()
    env.set_seed(0)
    env.set_device("cpu")
    env.set_evaluator(ClassificationEval(eval_every=min(workload.test_every, run.rounds), n_classes=10))
    clients = [loader(*data.client(i), workload.batch_size, True) for i in range(workload.clients)]
    test = loader(data.test_x, data.test_y, 10_000, False)
    splitter = DataSplitter(DummyDataContainer(clients, [None] * len(clients), test, 10))
    options = DDict(
        client={
            "batch_size": workload.batch_size,
            "local_epochs": workload.epochs,
            "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": workload.lr},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
            "persistency": False,  # as it advises for clients without state
        },
        server={"weighted": True},
        model=run.network(),
    )
    algorithm = FedAVG(workload.clients, splitter, options)
    algorithm.set_callbacks([Report(run)])
    algorithm.run(run.rounds, workload.cohort / workload.clients)


if __name__ == "__main__":
    train(job())
