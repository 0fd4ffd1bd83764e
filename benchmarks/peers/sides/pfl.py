"""pfl-research, as `benchmarks/image_classification/pytorch/train.py` of its repository runs its CIFAR-10 benchmark.

`workers` are processes, which find each other by PFL_WORKER_ADDRESSES, as its guide to distributed simulations says.
Images lie channels-last in memory, as in its benchmark.
"""

from __future__ import annotations

import os
import types

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import to_tensor
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.peers.job import Job, job


class ToChannelsFirst(nn.Module):
    """Images [B, H, W, C] as [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)


def loss(self: nn.Module, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
    self.eval() if eval else self.train()
    return F.cross_entropy(self(x), y.long())


@torch.no_grad()
def metrics(self: nn.Module, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Weighted]:
    self.eval() if eval else self.train()
    scores = self(x)
    return {
        "loss": Weighted(F.cross_entropy(scores, y.long(), reduction="sum").item(), len(x)),
        "accuracy": Weighted((scores.argmax(-1) == y).float().sum().item(), len(x)),
    }


class Report(TrainingProcessCallback):
    """Evaluates when due, and reports."""

    def __init__(self, run: Job, evaluation: CentralEvaluationCallback):
        self.run, self.evaluation = run, evaluation

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        round, new, accuracy = central_iteration + 1, Metrics(), None
        if self.run.tested(round):
            _, new = self.evaluation.after_central_iteration(aggregate_metrics, model, central_iteration=round)
            accuracy = new.to_simple_dict()["Central val | accuracy"]
        if os.environ.get("PFL_WORKER_RANK", "0") == "0":
            self.run.report(round, accuracy)
        return False, new


def train(run: Job) -> None:
    workload, data = run.workload, run.arrays
    net = nn.Sequential(ToChannelsFirst(), *run.network())
    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)  # type: ignore[assignment]
    np.random.seed(0)
    images, labels = (to_tensor(a) for a in (data.train_x.permute(0, 2, 3, 1).contiguous(), data.train_y))
    users = {i: (images[shard], labels[shard]) for i, shard in enumerate(data.shards)}
    test = Dataset(raw_data=[to_tensor(data.test_x.permute(0, 2, 3, 1).contiguous()), to_tensor(data.test_y)])
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    training = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", range(len(users))))
    evaluated = NNEvalHyperParams(local_batch_size=10_000)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=run.rounds,
            evaluation_frequency=workload.test_every,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=training, val_data=None, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=workload.lr,
            local_num_epochs=workload.epochs,
            local_batch_size=workload.batch_size,
        ),
        model_eval_params=evaluated,
        callbacks=[Report(run, CentralEvaluationCallback(test, evaluated, frequency=1))],
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(job())
