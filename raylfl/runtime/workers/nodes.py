"""Operations of a worker on a block of nodes of a graph, in a round of a method without a server.

A block is a fixed set of a few nodes, whose states are one `State` with rows [n, ...]. A piece is the messages of one
block to another block, or to several blocks that need the same messages. The result of an operation depends on its
arguments only, so that a call can be repeated on any worker:

    work      computes the local work of the nodes, and the messages that other blocks need
    publish   computes only the messages
    mix       computes the block's new rows from its old rows and the messages that arrive, and measures the new rows
    exchange  mixes the messages of all blocks at once, if all blocks are in one process
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import State
from raylfl.core.arrays import Ints
from raylfl.core.mixing_rows import MixingRows
from raylfl.core.reduce import tree_sum
from raylfl.core.threads import one_thread
from raylfl.experiment.parts import UNSEEN
from raylfl.runtime.workers.task import Task, TaskResult

Runner = Any  # a `Worker` or an executor of one process: runs tasks by `attempt`, of its `algorithm`


@dataclass(frozen=True)
class PublishJob:
    """The rows that a block of nodes sends to other blocks.

    rows: row numbers of the nodes that work in this round [n]. local: their rows in the result of the local work [n];
    None if messages are sent before it. needed: positions in `rows`, for each distinct set of messages that other
    blocks need. tasks: of the operation `work`, which train the nodes in this order.
    """

    rows: Ints
    local: Ints | None
    needed: tuple[Ints, ...]
    tasks: tuple[Task, ...] = ()


@dataclass(frozen=True)
class MixJob:
    """The mixing of a block's rows.

    rows: row numbers of the nodes that get new rows [n]. local: as in `PublishJob`. parts: for each mixing matrix of
    the round, the matrix rows of these nodes; the columns are first the block's own messages, then those of the other
    blocks, block by block. Empty parts: the results of the local work are the new rows. parts = None: `exchange` has
    mixed the messages already. optimum: x* [d] if known.
    """

    rows: Ints
    local: Ints | None
    parts: tuple[MixingRows, ...] | None
    optimum: Tensor | None


class Spread(NamedTuple):
    """The sum [d] of some rows [n, d], and the sum of the squared distances of the rows from their mean."""

    total: Tensor
    squares: float

    @staticmethod
    def of(rows: Tensor) -> Spread:
        total = tree_sum(rows)
        return Spread(total, float(torch.linalg.vector_norm(rows - total / len(rows))) ** 2)


class Measure(NamedTuple):
    """Measures of a block's rows: the number of nodes, and spreads of their variables.

    parameters: None if the parameters are x itself; tracked: of gradient tracking, None for other methods; worst: the
    largest distance |x_i - x*| of a node's parameters x_i from the optimum x*, None if x* is not known.
    """

    nodes: int
    x: Spread
    parameters: Spread | None
    tracked: Spread | None
    worst: float | None


class WorkReport(NamedTuple):
    """The report of a block's local work to the round loop.

    result: of the tasks, with the uploads that are hidden from the method (`UNSEEN`); floats: that a node sends along
    one edge; sizes: bytes of each distinct set of messages.
    """

    result: TaskResult
    floats: int
    sizes: tuple[int, ...]


def work(runner: Runner, job: PublishJob, broadcast: State, block: State) -> tuple[Any, ...]:
    """Runs the local work of a block with these rows; returns (`WorkReport`, the nodes' rows after it, *messages)."""
    results, at = [], 0
    for task in job.tasks:
        mine = job.rows[at : (at := at + len(task.clients))]
        results.append(runner.attempt(task, broadcast, {name: _taken(rows, mine) for name, rows in block.items()}))
    result = TaskResult.joined(results)
    uploads = result.uploads
    result.uploads = {name: uploads.pop(name) for name in UNSEEN if name in uploads}
    if not uploads:
        return WorkReport(result, 0, ()), {}, *({} for _ in job.needed)
    sizes, *pieces = publish(runner, job, block, uploads)
    return WorkReport(result, runner.algorithm.sent_floats(uploads), sizes), uploads, *pieces


def publish(runner: Runner, job: PublishJob, block: State, local: State) -> tuple[Any, ...]:
    """Computes the messages that other blocks need; returns (the bytes of each piece, *pieces).

    block: the rows of the block before the local work; local: the result of the local work.
    """
    if not job.needed:
        return ((),)
    with one_thread():
        sent = runner.algorithm.messages(*_rows(job.rows, job.local, block, local))
    pieces = [{name: _taken(rows, some) for name, rows in sent.items()} for some in job.needed]
    return tuple(sum(rows.nbytes for rows in piece.values()) for piece in pieces), *pieces


def mix(runner: Runner, job: MixJob, block: State, local: State, *pieces: State) -> tuple[Measure, State]:
    """Mixes a block's rows with the messages `pieces` of other blocks; returns (measures, the new rows)."""
    if len(job.rows):
        with one_thread():
            new = _mixed(runner.algorithm, job, block, local, pieces)
        if not _all(job.rows, len(block["x"])):
            here = torch.from_numpy(job.rows)
            new = {name: block[name].index_copy(0, here, rows) for name, rows in new.items()}
        block = {**block, **new}
    return measure(runner.algorithm, block, job.optimum), block


def exchange(runner: Runner, parts: Sequence[MixingRows], *pieces: State) -> tuple[Any, ...]:
    """Mixes the messages `pieces` of all blocks; returns (None, *the mixed messages of each block)."""
    sizes, mixed = [len(next(iter(piece.values()))) for piece in pieces], list[State]({} for _ in pieces)
    with one_thread():
        for name in pieces[0]:
            matrix = runner.algorithm.matrix(name, parts)
            rows = matrix.mix([piece[name] for piece in pieces], sizes, all_cores=True)
            for block, own in zip(mixed, rows, strict=True):
                block[name] = own
    return None, *mixed


def measure(algorithm: GraphAlgorithm, block: State, optimum: Tensor | None) -> Measure:
    """The measures of a block's rows; optimum: x* [d] if known."""
    parameters = algorithm.parameters(block)
    own = parameters is not block["x"]
    tracked = None if algorithm.tracked is None else Spread.of(block[algorithm.tracked])
    worst = None
    if optimum is not None:
        worst = float(torch.linalg.vector_norm(parameters.double() - optimum.double(), dim=1).max())
    return Measure(len(parameters), Spread.of(block["x"]), Spread.of(parameters) if own else None, tracked, worst)


OPERATIONS: dict[str, Callable[..., tuple[Any, ...]]] = {
    operation.__name__: operation for operation in (work, publish, mix, exchange)
}


def _mixed(algorithm: GraphAlgorithm, job: MixJob, block: State, local: State, pieces: Sequence[State]) -> State:
    rows, before = _rows(job.rows, job.local, block, local)
    if job.parts is None:
        return algorithm.combine(rows, before, pieces[0])
    if not job.parts:
        return {name: rows[name] for name in before}
    mixed = {
        name: algorithm.matrix(name, job.parts)(own, *(piece[name] for piece in pieces))
        for name, own in algorithm.messages(rows, before).items()
    }
    return algorithm.combine(rows, before, mixed)


def _rows(at: Ints, local: Ints | None, block: State, worked: State) -> tuple[State, State]:
    """(rows after the local work, rows before it) of the nodes with the row numbers `at`; equal if `local` is None."""
    before = {name: _taken(rows, at) for name, rows in block.items()}
    after = {} if local is None else {name: _taken(rows, local) for name, rows in worked.items()}
    return before | after, before


def _taken(rows: Tensor, at: Ints) -> Tensor:
    return rows if _all(at, len(rows)) else rows.index_select(0, torch.from_numpy(at))


def _all(at: Ints, count: int) -> bool:
    return len(at) == count and bool((at == np.arange(count)).all())
