"""The reference for a round on a GPU: a plain PyTorch loop on one device, eager or as a CUDA graph."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.floor import made
from benchmarks.workloads import RATE, Workload


def loop_seconds(workload: Workload, rounds: int, device: torch.device, graph: bool) -> list[float]:
    """Seconds of each round of FedAvg; graph: whether a local step is captured once and replayed.

    Convolutions and products are IEEE float32, as in a run with `runtime.precision=32-true`.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    model = made(workload).to(device)
    x = torch.randn(workload.samples, *workload.shape).to(device)
    y = torch.randint(0, 10, (workload.samples,)).to(device)
    shards = torch.randperm(workload.samples).chunk(workload.clients)
    parameters = list(model.parameters())
    server = [p.detach().clone() for p in parameters]
    step = _step(model, parameters)
    if graph:
        step = _captured(step, x[: workload.batch_size], y[: workload.batch_size])
    seconds = []
    for _ in range(rounds):
        _wait(device)
        started = time.perf_counter()
        total = [torch.zeros_like(p) for p in server]
        for client in torch.randperm(workload.clients)[: workload.cohort].tolist():
            _set(parameters, server)
            order = shards[client][torch.randperm(len(shards[client]))].to(device)
            for t in range(workload.steps):
                at = (t * workload.batch_size) % max(len(order) - workload.batch_size + 1, 1)
                batch = order[at : at + workload.batch_size]
                step(x[batch], y[batch])
            torch._foreach_add_(total, [p.detach() for p in parameters])
        server = list(torch._foreach_div(total, workload.cohort))
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return seconds


@torch.no_grad()
def evaluation_seconds(workload: Workload, samples: int, size: int, device: torch.device, times: int = 5) -> float:
    """The median seconds of the losses and hits of `samples` images in batches of `size`, as one graph a batch."""
    torch.manual_seed(0)
    model = made(workload).to(device).eval()
    x, y = torch.randn(samples, *workload.shape).to(device), torch.randint(0, 10, (samples,)).to(device)
    total = torch.zeros(2, device=device)

    def add(inputs: Tensor, labels: Tensor) -> None:
        scores = model(inputs)
        total.add_(torch.stack([F.cross_entropy(scores, labels, reduction="sum"), (scores.argmax(1) == labels).sum()]))

    step = _captured(add, x[:size], y[:size])
    seconds = []
    for _ in range(times):
        _wait(device)
        started = time.perf_counter()
        for at in range(0, samples, size):
            step(x[at : at + size], y[at : at + size])
        total.tolist()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds)[times // 2]


def _step(model: nn.Module, parameters: list[nn.Parameter]) -> Callable[[Tensor, Tensor], None]:
    def step(x: Tensor, y: Tensor) -> None:
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-RATE)

    return step


def _captured(step: Callable[[Tensor, Tensor], None], x: Tensor, y: Tensor) -> Callable[[Tensor, Tensor], None]:
    x, y = x.clone(), y.clone()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(x, y)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x, y)

    def replay(inputs: Tensor, labels: Tensor) -> None:
        x.copy_(inputs)
        y.copy_(labels)
        graph.replay()

    return replay


@torch.no_grad()
def _set(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    torch._foreach_copy_(parameters, values)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
