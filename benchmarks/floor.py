"""The same local SGD steps and averaging as single-threaded, eager PyTorch loops without a framework.

The floor is a lean loop: gradients and steps of the parameters, and nothing else. The plain loop is that of PyTorch's
documentation: `load_state_dict`, `zero_grad`, the module's `training_step`, `backward`, an optimizer's `step`, and
the mean of the clients' `state_dict`.
"""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from statistics import median
from threading import Barrier
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import RATE, Workload


def floor_seconds(workload: Workload, rounds: int) -> list[float]:
    """Seconds of each round of FedAvg on the workload's model and sizes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(islice(floor_rounds(workload), rounds))
    finally:
        torch.set_num_threads(before)


def side_by_side(workload: Workload, rounds: int, processes: int) -> float:
    """Seconds of a round of this many loops at the same time, each with an equal share of the clients.

    The loops are separate processes without any exchange of models: an upper bound on the speed of a loop divided among
    the machine's cores. The result is the median of the slowest process.
    """
    share = replace(workload, cohort=workload.cohort // processes)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        together = manager.Barrier(processes)
        loops = [pool.submit(_once_all_are_ready, share, rounds, together) for _ in range(processes)]
        return max(loop.result() for loop in loops)


def _once_all_are_ready(workload: Workload, rounds: int, together: Barrier) -> float:
    made(workload)  # the imports
    together.wait()
    return median(floor_seconds(workload, rounds)[1:])


def floor_rounds(workload: Workload) -> Iterator[float]:
    """Runs one round of the floor after the other; yields the seconds that each took."""
    model, x, y, shards = setting(workload)
    params = list(model.parameters())
    server = [p.detach().clone() for p in params]
    while True:
        started = time.perf_counter()
        total = [torch.zeros_like(p) for p in server]
        for client in torch.randperm(workload.clients)[: workload.cohort].tolist():
            with torch.no_grad():
                for p, s in zip(params, server, strict=True):
                    p.copy_(s)
            for batch in batches(workload, shards[client]):
                loss = F.cross_entropy(model(x[batch]), y[batch])
                gradients = torch.autograd.grad(loss, params)
                with torch.no_grad():
                    for p, g in zip(params, gradients, strict=True):
                        p.sub_(g, alpha=RATE)
            with torch.no_grad():
                for a, p in zip(total, params, strict=True):
                    a.add_(p)
        for s, a in zip(server, total, strict=True):
            s.copy_(a / workload.cohort)
        yield time.perf_counter() - started


def plain_rounds(workload: Workload) -> Iterator[float]:
    """Runs one round of the plain loop after the other, of a module with `training_step`; yields their seconds."""
    model, x, y, shards = setting(workload)
    model.train()
    server = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    while True:
        started = time.perf_counter()
        total = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for client in torch.randperm(workload.clients)[: workload.cohort].tolist():
            model.load_state_dict(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for t, batch in enumerate(batches(workload, shards[client])):
                optimizer.zero_grad()
                model.training_step((x[batch], y[batch]), t).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                total[name] += tensor
        server = {name: (tensor / workload.cohort).to(server[name].dtype) for name, tensor in total.items()}
        yield time.perf_counter() - started


def setting(workload: Workload) -> tuple[Any, Tensor, Tensor, Sequence[Tensor]]:
    """The model, all inputs and targets, and the numbers of each client's samples."""
    torch.manual_seed(0)
    model = made(workload)
    x = torch.randn(workload.samples, *workload.shape)
    y = torch.randint(0, 10, (workload.samples,))
    return model, x, y, torch.randperm(workload.samples).chunk(workload.clients)


def batches(workload: Workload, shard: Tensor) -> Iterator[Tensor]:
    """The numbers of the samples of each local step of a client, in random order."""
    order = shard[torch.randperm(len(shard))]
    for t in range(workload.steps):
        at = (t * workload.batch_size) % len(order)
        yield order[at : at + workload.batch_size]


def made(workload: Workload) -> nn.Module:
    """The network of a workload: images in, scores out."""
    if "." in workload.model:
        from raylfl.components.registry import import_class

        network = import_class(workload.model, "model")()
    else:
        from raylfl.models import MODELS
        from raylfl.models.base import fitted_args

        cls = MODELS.get(workload.model).cls
        shapes = type("Shapes", (), {"in_shape": workload.shape, "num_classes": 10})()
        network = cls(**fitted_args(cls, {}, shapes)).layers
    assert isinstance(network, nn.Module)
    return network
