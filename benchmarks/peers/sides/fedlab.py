# ruff: noqa: E402 (torchvision first)
"""FedLab, as its standalone example writes it: clients in turn in one process; one thread."""

import torch

from benchmarks.peers.job import Job, accuracy, import_torchvision, job

import_torchvision()

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset


class Clients(FedDataset):
    """The samples of each client."""

    def __init__(self, run: Job):
        self.data, self.num = run.arrays, run.workload.clients

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:  # type: ignore[type-arg]
        return DataLoader(TensorDataset(*self.data.client(id)), batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    """The pipeline, which evaluates when due, and reports."""

    def __init__(self, run: Job, handler: SyncServerHandler, trainer: SGDSerialClientTrainer):
        super().__init__(handler, trainer)
        self.run = run

    def evaluate(self) -> None:
        round, score = self.handler.round, None
        if self.run.tested(round):
            score = accuracy(self.handler.model, self.run.arrays.test_x, self.run.arrays.test_y)
        self.run.report(round, score)


def train(run: Job) -> None:
    workload = run.workload
    torch.set_num_threads(run.workers)
    model = run.network()
    handler = SyncServerHandler(model, run.rounds, workload.cohort / workload.clients)
    trainer = SGDSerialClientTrainer(model, workload.clients, cuda=False)
    trainer.setup_dataset(Clients(run))
    trainer.setup_optim(workload.epochs, workload.batch_size, workload.lr)
    Pipeline(run, handler, trainer).main()


if __name__ == "__main__":
    train(job())
