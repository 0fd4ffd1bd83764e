"""The limit of a workload's round: its arithmetic and its memory traffic, at the rates of this machine's cores."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.peers.definitions import PeerWorkload
from benchmarks.peers.networks import NETWORKS

PASSES = 6  # times a step reads or writes a vector [d]: x forward and backward, g written; g and x read, x written


def limits(workload: PeerWorkload, cores: int) -> dict[str, float]:
    """Seconds of a round that its matrix products and convolutions take, and its passes over parameters, on all cores.

    Both rates are measured on one core: products of matrices of 1,024 rows, and x <- x - eta g on vectors as long as
    the model's, which reads two vectors and writes one. Activations are left out, and so is the overlap of the two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = NETWORKS[workload.name]()
        x, y = torch.randn(workload.batch_size, *workload.shape), torch.zeros(workload.batch_size, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            F.cross_entropy(model(x), y).backward()
        steps = workload.cohort * workload.steps
        a, b = torch.randn(2, 1024, 1024)
        rate = 2 * 1024**3 / fastest(lambda: a @ b)
        p, g = torch.randn(2, sum(q.numel() for q in model.parameters()))
        update = fastest(lambda: p.sub_(g, alpha=1e-9))
    finally:
        torch.set_num_threads(before)
    return {
        "arithmetic": steps * counter.get_total_flops() / rate / cores,
        "memory": steps * PASSES / 3 * update / cores,
        "gflops": rate / 1e9,
    }


def fastest(call: Callable[[], object], calls: int = 50) -> float:
    """The processor seconds of the fastest of several calls, which other work on the machine disturbs least."""
    times = []
    for _ in range(calls):
        started = time.thread_time()
        call()
        times.append(time.thread_time() - started)
    return min(times)
