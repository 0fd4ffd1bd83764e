"""Losses f_i and gradients grad f_i of clients over their whole shards, computed in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Floats
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.reduce import column, tree_sum
from raylfl.core.samples import BatchSource, ClientShards
from raylfl.runtime.workers.evaluate import Recorder


@dataclass(frozen=True)
class FullGradients:
    """Computes losses and gradients of clients over their whole shards, with the module in evaluation mode.

    loop: computes gradients of `batch_size` samples at a time; source: the training data as evaluations read them;
    shards: the sample indices of each client; recorder: drops the values that the module logs; reset: called before
    each client. A client's gradient does not depend on other clients: all begin with the same buffers, which are
    restored afterwards.
    """

    loop: LoopOracle
    source: BatchSource
    shards: ClientShards
    recorder: Recorder
    batch_size: int
    reset: Callable[[], None] = lambda: None

    def of(self, x: Tensor, clients: Sequence[int], weights: Floats) -> tuple[float, Tensor]:
        """(sum w_i f_i(x), sum w_i grad f_i(x) [d]) over these clients i, at the parameters x [d].

        weights: w_i of each of these clients; f_i: mean loss over all samples of client i.
        """
        losses, rows = zip(*(self.of_client(x, c) for c in clients), strict=True)
        return weighted(torch.stack(losses).cpu().numpy(), rows, weights)

    def of_client(self, x: Tensor, client: int) -> tuple[Tensor, Tensor]:
        """(f_i(x), grad f_i(x) [d]) at x [d], where f_i is the mean loss over the whole shard of client i."""
        shard, buffers = self.shards[client], self.loop.flat.read_buffers()
        self.reset()
        self.loop.flat.module.eval()
        loss, gradient = x.new_zeros((), dtype=torch.float64), torch.zeros_like(x)
        for start in range(0, len(shard), self.batch_size):
            batch = self.source.batch(shard[start : start + self.batch_size])
            with self.recorder.into(None):
                losses, rows = self.loop.gradients(x[None], [batch], lambda c: 0)
            loss += losses[0].double() * batch.size / len(shard)
            gradient.add_(rows[0], alpha=batch.size / len(shard))
        self.loop.flat.write_buffers(buffers)
        return loss, gradient


def weighted(losses: Floats, gradients: Sequence[Tensor], weights: Floats) -> tuple[float, Tensor]:
    """(sum w_i f_i, sum w_i grad f_i [d]) from the losses f_i [C], gradients grad f_i [d] and weights w_i [C]."""
    rows = torch.stack(list(gradients))
    return float(np.dot(weights, losses)), tree_sum(rows * column(weights, rows))


class WeightedOracle(LoopOracle):
    """An oracle for the exact gradient of F = sum_i w_i f_i over all N clients; it ignores mini-batches."""

    def __init__(self, full: FullGradients, weights: Floats):
        super().__init__(full.loop.flat, full.loop.autocast)
        self.full, self.weights = full, weights

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        at = x[0].clone()
        loss, gradient = self.full.of(at, range(len(self.weights)), self.weights)
        self.flat.load(x[0])
        return x.new_full((1,), loss, dtype=torch.float64), gradient[None]
