"""Recorded steps as CUDA graphs: one launch for all calls of a step, with inputs at fixed addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from raylfl.core.recorded.program import Program
from raylfl.core.step_log import LogCall

MOST = 16  # largest number of graphs; other kinds of batches are replayed call by call
WARM_UP = 3  # steps before the capture, in which libraries allocate their permanent memory

Results = tuple[Tensor, ...]
Capture = Callable[[Callable[[], Results]], tuple[Callable[[], None], Results]]


def capture_on_cuda(function: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
    """Captures the kernels of a function; returns (a function that replays them, the tensors that they write to).

    The function runs a few times before the capture.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # thread_local: CUDA calls of other threads, such as a loader's, do not end the capture
    with torch.cuda.graph(graph, pool=_pool(), capture_error_mode="thread_local"):
        results = function()
    return graph.replay, results


@cache
def _pool() -> Any:
    """The memory of all graphs of this process; `Captured` copies a graph's results before another one is replayed."""
    return torch.cuda.graph_pool_handle()


def _copy(leaf: Tensor) -> Tensor:
    """A copy of a tensor with the same strides; `clone` would make a slice of a larger tensor contiguous."""
    if any(size > 1 and stride == 0 for size, stride in zip(leaf.shape, leaf.stride(), strict=True)):
        return leaf.clone()  # entries share memory, and cannot be written one by one
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)


class Captured:
    """A program captured as one CUDA graph; it is called with the same arguments as the program."""

    def __init__(self, program: Program, leaves: Sequence[Tensor], row: Tensor, capture: Capture):
        """Captures the program with copies of these arguments at fixed addresses.

        leaves: the tensors of a batch. row: a tensor of the gradient's shape. capture: a function like
        `capture_on_cuda`. The capture carries out a few steps, which change the module's buffers and the random
        generators.
        """
        self.program, self.draws, self.logs, self.modes = program, program.draws, program.logs, program.modes
        self._leaves, self._row = [_copy(leaf) for leaf in leaves], torch.empty_like(row)
        self._replay, self._results = capture(lambda: program(self._leaves, self._row))

    def __call__(self, leaves: Sequence[Tensor], row: Tensor) -> Results:
        for mine, given in zip(self._leaves, leaves, strict=True):
            mine.copy_(given, non_blocking=True)
        self._replay()
        row.copy_(self._row)
        return tuple(result.clone() for result in self._results)

    def logged(self, values: Sequence[Tensor]) -> list[LogCall]:
        """The step's calls of `self.log` with these values, which `__call__` returned after the loss."""
        return self.program.logged(values)
