"""The rounds of a method without a server: the states of nodes stay on workers, and only messages travel.

The nodes are divided into blocks, as the config determines. The state of a block is one tensor per variable, with a row
for each node. The same worker carries out the calls for a block in every round; another one replaces it only while it
is lost. In a round, the worker carries out the local work of the block's nodes, passes messages by reference to the
blocks that need them, and mixes the block's rows with the messages that arrive (`raylfl.runtime.workers.nodes`). The
process of the round loop has the graph, and reports and measures of blocks (such as the sum of their rows, for the
reported mean), but not the rows. If all blocks are in the calling process, one call mixes the messages of all blocks,
without copies.

Rows are passed by reference, and each call is a function of its arguments. A call whose worker is lost is therefore
repeated on another worker, and a checkpoint collects the rows of all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms.graph import NODE, SPECTRUM, GraphAlgorithm
from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.arrays import Ints
from raylfl.core.deferred import Deferred
from raylfl.core.mixing import Mixing
from raylfl.core.mixing_rows import MixingRows
from raylfl.core.population import Round
from raylfl.core.reduce import tree_sum
from raylfl.runtime.workers.backend import BlockCall, Executor, Handle
from raylfl.runtime.workers.nodes import ExchangeJob, Measure, MixJob, PublishJob, Spread, WorkJob
from raylfl.runtime.workers.task import ClientReports, Task

BLOCKS = "blocks"  # in the server state: the handles of the blocks
ALL = -1  # the receiver of messages that are mixed for all blocks at once


class ExchangePlan:
    """The exchange of one round: the rows that each block of nodes needs from each other block.

    Nodes are numbered by their positions in the round's cohort.
    """

    def __init__(self, r: Round, blocks: Ints, rows: Ints, mixings: Sequence[Mixing], shared_memory: bool):
        """The plan of round r.

        blocks: the number of each node's block [N]; rows: the node's row number in that block [N]. mixings: the round's
        mixing matrices. shared_memory: whether all blocks are in one process.
        """
        self.mixings, self.cohort, block, row = mixings, r.cohort, blocks[r.cohort], rows[r.cohort]
        self._parts: dict[int, tuple[MixingRows, ...]] = {}
        self.nodes = {b: np.flatnonzero(block == b) for b in np.unique(block).tolist()}
        self.blocks = list(self.nodes)
        self.rows = {b: row[nodes] for b, nodes in self.nodes.items()}
        self.needs: dict[int, Ints] = {}
        self.into: dict[int, dict[int, Ints]] = {b: {} for b in self.blocks}  # receiver -> sender -> places in `needs`
        self.out: dict[int, dict[int, Ints]] = {b: {} for b in self.blocks}  # sender -> receiver -> places in `nodes`
        self.exchange: ExchangeJob | None = None
        if shared_memory and self.blocks:
            order = np.concatenate(list(self.nodes.values()))
            parts = tuple(m.rows_of(order, np.arange(len(order))).over(order) for m in mixings)
            self.exchange = ExchangeJob(parts)
            self.out = {b: {ALL: np.arange(len(nodes))} for b, nodes in self.nodes.items()}
        else:
            self._choose(block)

    def _choose(self, block: Ints) -> None:
        """Determines the rows that each block needs from each other block.

        block: the number of the block of each node in the cohort [C].
        """
        place = np.zeros(len(block), dtype=np.int64)
        for nodes in self.nodes.values():
            place[nodes] = np.arange(len(nodes))
        for b, nodes in self.nodes.items():
            needs = self.needs[b] = np.unique(np.concatenate([m.needs(nodes) for m in self.mixings]))
            for c in np.unique(block[needs]).tolist():
                if c != b:
                    self.into[b][c] = np.flatnonzero(block[needs] == c)
                    self.out[c][b] = place[needs[self.into[b][c]]]

    def parts(self, b: int) -> tuple[MixingRows, ...]:
        """The rows of the mixing matrices that give the new rows of block b, one `MixingRows` per matrix.

        The columns stand for the block's own rows first, then for the messages of each other block.
        """
        if b not in self._parts:
            nodes, needs = self.nodes[b], self.needs[b]
            order = np.concatenate([np.flatnonzero(np.isin(needs, nodes)), *self.into[b].values()])
            self._parts[b] = tuple(mixing.rows_of(nodes, needs).over(order) for mixing in self.mixings)
        return self._parts[b]

    def sending(self, b: int, local: Ints | None) -> PublishJob:
        """The numbers of the rows that block b sends to other blocks.

        local: the row numbers of its nodes in the result of the local work; None if messages precede the local work.
        """
        return PublishJob(self.rows[b], local, tuple(self.distinct(b).values()))

    def distinct(self, b: int) -> dict[bytes, Ints]:
        """The distinct sets of rows that other blocks need from block b, as positions in `nodes[b]`.

        Blocks that need the same rows share one set. The key of a set is the bytes of its array.
        """
        return {places.tobytes(): places for places in self.out[b].values()}


class Piece(NamedTuple):
    """The messages from one block of nodes to another: a handle of the tensors, and their size in bytes."""

    handle: Handle
    size: int


Pieces = dict[tuple[int, int], Piece]  # by sending and receiving block


@dataclass
class NodeResults:
    """The results of the nodes' local work in a round.

    plan: the exchange of messages. local: for each block, a handle of its rows after the local work.
    pieces: the messages between blocks; empty if messages precede the local work.
    """

    plan: ExchangePlan
    reports: ClientReports
    unseen: State  # buffers and optimizer states to average, hidden from the method; rows in cohort order
    floats: int  # floats that a node sends along one edge
    local: dict[int, Handle] = field(default_factory=dict)
    pieces: Pieces = field(default_factory=dict)


class Blocks:
    """The blocks of a run's nodes, and the calls to the blocks' workers.

    count: the number of nodes; blocks: the number of blocks; optimum: x* [d] if known, for metrics.
    """

    def __init__(self, algorithm: GraphAlgorithm, backend: Executor, count: int, blocks: int, optimum: Tensor | None):
        self.algorithm, self.backend, self.optimum = algorithm, backend, optimum
        self.nodes = np.array_split(np.arange(count), blocks)
        self._block = np.repeat(np.arange(blocks), [len(nodes) for nodes in self.nodes])
        self._row = np.concatenate([np.arange(len(nodes)) for nodes in self.nodes])
        self._measures: dict[int, tuple[Handle, Measure]] = {}
        self._plan: ExchangePlan | None = None

    # -- the state -----------------------------------------------------------------------------------------------

    def scattered(self, server: ServerState) -> ServerState:
        """The server state in which handles replace the nodes' rows; the backend gets the rows, block by block."""
        rows = {name: value for name, value in server.items() if name.startswith(NODE)}
        handles = [
            self.backend.put({name.removeprefix(NODE): v[torch.from_numpy(nodes)] for name, v in rows.items()})
            for nodes in self.nodes
        ]
        return {**{name: value for name, value in server.items() if name not in rows}, BLOCKS: handles}

    def gathered(self, server: ServerState) -> ServerState:
        """The server state in which the rows of all nodes [N, ...] replace the handles: the inverse of `scattered`."""
        blocks = self.backend.get(server[BLOCKS])
        rows = {NODE + name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
        return {**{name: value for name, value in server.items() if name != BLOCKS}, **rows}

    # -- a round -------------------------------------------------------------------------------------------------

    def send(self, r: Round, broadcast: State, server: ServerState) -> Deferred[NodeResults]:
        """The deferred local work of round r, with the messages that follow it.

        If the method exchanges messages before the local work, both are carried out when the result is awaited.
        """
        plan = self._planned(r)
        if not self.algorithm.exchanges_first:
            return self._work(r, plan, broadcast, server[BLOCKS])

        def after_mixing() -> NodeResults:
            pieces = self._published(plan, server[BLOCKS], {}, {})
            mixed = self._mix(plan, server[BLOCKS], {}, {}, pieces)
            handles = list(server[BLOCKS])
            for b, (_, handle) in mixed.items():
                handles[b] = handle
            return self._work(r, plan, broadcast, handles).result()

        return Deferred(after_mixing)

    def step(self, r: Round, server: ServerState, worked: NodeResults) -> tuple[ServerState, Info, dict[str, float]]:
        """Mixes the nodes' rows, unless that preceded the local work; returns (new server state, info, metrics).

        r: the round without the nodes whose local work failed; worked: the local work of the whole cohort.
        """
        handles, algorithm = list(server[BLOCKS]), self.algorithm
        whole = worked.plan
        plan, local, pieces = whole, {b: np.arange(len(n)) for b, n in whole.nodes.items()}, worked.pieces
        if len(r.cohort) < sum(map(len, whole.nodes.values())):  # some nodes failed: matrices and messages change
            plan = self._planned(r)
            local = {b: np.flatnonzero(np.isin(whole.rows[b], plan.rows[b])) for b in plan.blocks}
            pieces = {} if algorithm.exchanges_first else self._published(plan, handles, worked.local, local)
        settled = algorithm.exchanges_first
        for b, (measure, handle) in self._mix(plan, handles, worked.local, local, pieces, settled).items():
            handles[b] = handle
            self._measures[b] = handle, measure
        after, measures = {**server, BLOCKS: handles}, self._measured(handles)
        info = self._info(plan.mixings[0], len(r.cohort), measures) if len(r.cohort) else {}
        if len(r.cohort):
            after["x"] = tree_sum(torch.stack([m.x.total for m in measures])) / len(self._block)
        return after, info, self._worst(measures)

    def uploads(self, worked: NodeResults) -> State:
        """The nodes' rows after the local work, in cohort order; used by tests only."""
        return _ordered(worked.plan, self.backend.get([worked.local[b] for b in worked.plan.blocks]))

    def _planned(self, r: Round) -> ExchangePlan:
        """The plan of a round; the previous plan is reused if neither nodes nor matrices have changed."""
        mixings, last = self.algorithm.mixings(r), self._plan
        if last is None or last.mixings is not mixings or not np.array_equal(last.cohort, r.cohort):
            self._plan = last = ExchangePlan(r, self._block, self._row, mixings, self.backend.shared_memory)
        return last

    # -- calls ---------------------------------------------------------------------------------------------------

    def _work(self, r: Round, plan: ExchangePlan, broadcast: State, handles: Sequence[Handle]) -> Deferred[NodeResults]:
        first = self.algorithm.exchanges_first
        calls, shared = [], self.backend.shared_broadcast(broadcast) if plan.blocks else None
        for b, nodes in plan.nodes.items():
            tasks = tuple(Task.of(r, some) for some in (nodes[:, None] if self.backend.one_by_one else [nodes]))
            sending = PublishJob(plan.rows[b], None, ()) if first else plan.sending(b, np.arange(len(nodes)))
            calls.append(BlockCall(b, "work", WorkJob(tasks, sending), (shared, handles[b]), 2 + len(sending.needed)))

        def worked(results: Sequence[Sequence[Handle]]) -> NodeResults:
            unseen = _ordered(plan, [result[0].unseen for result in results])
            reports = ClientReports.joined([result[0].reports for result in results])
            found = NodeResults(plan, reports, unseen, max((result[0].floats for result in results), default=0))
            for b, result in zip(plan.blocks, results, strict=True):
                found.local[b] = result[1]
                found.pieces |= {} if first else _pieces(b, plan, result[2:], result[0].sizes)
            return found

        return self.backend.run_blocks(calls).then(worked)

    def _published(
        self, plan: ExchangePlan, handles: Sequence[Handle], worked: dict[int, Handle], local: dict[int, Ints]
    ) -> Pieces:
        """Makes the blocks compute the messages of this plan; returns handles of the messages.

        handles: the rows of each block before the local work. worked: for each block, the result of its local work;
        empty if messages precede it. local: for each block, the row numbers of its nodes in that result.
        """
        senders = [b for b in plan.blocks if plan.out[b]]
        calls = []
        for b in senders:
            sending = plan.sending(b, local.get(b))
            given = handles[b], worked.get(b, handles[b])
            calls.append(BlockCall(b, "publish", sending, given, 1 + len(sending.needed)))
        results = self.backend.run_blocks(calls).result()
        found: Pieces = {}
        for b, result in zip(senders, results, strict=True):
            found |= _pieces(b, plan, result[1:], result[0])
        return found

    def _mix(
        self,
        plan: ExchangePlan,
        handles: Sequence[Handle],
        worked: dict[int, Handle],
        local: dict[int, Ints],
        pieces: Pieces,
        settled: bool = False,
    ) -> dict[int, tuple[Measure, Handle]]:
        """Mixes the rows of the working blocks; returns each block's measure and a handle of its new rows.

        handles: the rows of each block before the local work. worked: for each block, the result of its local work.
        local: for each block, the row numbers of its nodes in that result. pieces: the messages. settled: whether
        messages were mixed before the local work; its results are then the new rows.
        """
        mixed = {} if settled else self._exchanged(plan, pieces)
        calls = []
        for b in plan.blocks:
            parts = () if settled else None if mixed else plan.parts(b)
            job = MixJob(plan.rows[b], local.get(b), parts, self.optimum)
            taken = {} if settled else {c: pieces[c, b] for c in plan.into[b]}
            messages = [mixed[b]] if mixed else [piece.handle for piece in taken.values()]
            given = (handles[b], worked.get(b, handles[b]), *messages)
            calls.append(BlockCall(b, "mix", job, given, 2, tuple((c, piece.size) for c, piece in taken.items())))
        results = self.backend.run_blocks(calls).result()
        return {b: (measure, handle) for b, (measure, handle) in zip(plan.blocks, results, strict=True)}

    def _exchanged(self, plan: ExchangePlan, pieces: Pieces) -> dict[int, Handle]:
        """Handles of each block's mixed messages, from one call for all blocks; empty if each block mixes alone."""
        if plan.exchange is None:
            return {}
        given = tuple(pieces[b, ALL].handle for b in plan.blocks)
        call = BlockCall(plan.blocks[0], "exchange", plan.exchange, given, 1 + len(given))
        ((_, *mixed),) = self.backend.run_blocks([call]).result()
        return dict(zip(plan.blocks, mixed, strict=True))

    # -- measures ------------------------------------------------------------------------------------------------

    def _measured(self, handles: Sequence[Handle]) -> list[Measure]:
        """The measures of every block; a block is measured again only if its rows have changed."""
        unknown = [b for b, h in enumerate(handles) if b not in self._measures or self._measures[b][0] is not h]
        none = np.zeros(0, dtype=np.int64)
        job = MixJob(none, none, (), self.optimum)
        results = self.backend.run_blocks([BlockCall(b, "mix", job, (handles[b], handles[b]), 2) for b in unknown])
        for b, (measure, _) in zip(unknown, results.result(), strict=True):
            self._measures[b] = handles[b], measure
        return [self._measures[b][1] for b in range(len(handles))]

    def _info(self, mixing: Mixing, working: int, measures: Sequence[Measure]) -> Info:
        """The algorithm's metrics of a round, from the measures of all blocks.

        consensus_error is the root mean square distance of the nodes' parameters from their mean. tracking_error is the
        same distance for the variable of gradient tracking, and is left out for other methods. components and
        spectral_gap are properties of the round's graph and mixing matrix. working: the number of nodes that take part
        in the round; if there are more than SPECTRUM, spectral_gap is left out.
        """
        counts = [m.nodes for m in measures]
        info = {"consensus_error": spread(counts, [m.parameters or m.x for m in measures])}
        if self.algorithm.tracked is not None:
            info["tracking_error"] = spread(counts, [m.tracked for m in measures if m.tracked is not None])
        info["components"] = mixing.components
        if working <= SPECTRUM:
            info["spectral_gap"] = mixing.gap
        return info

    def _worst(self, measures: Sequence[Measure]) -> dict[str, float]:
        """Metric `global/worst_distance` = max_i |x_i - x*| / |x*| over the nodes i (|x_i - x*| if x* = 0).

        Empty if the optimum x* is not known.
        """
        if self.optimum is None:
            return {}
        scale = float(torch.linalg.vector_norm(self.optimum.double()))
        return {"global/worst_distance": max(m.worst for m in measures if m.worst is not None) / (scale or 1.0)}


def spread(counts: Sequence[int], parts: Sequence[Spread]) -> float:
    """The root mean square distance of rows from their mean, computed from the spread of each part of the rows.

    counts: the number of rows n_b of each part b. With the mean m of all rows and the mean m_b of part b,
    sum_i |x_i - m|^2 = sum_b (sum_(i in b) |x_i - m_b|^2 + n_b |m_b - m|^2), which avoids cancellation.
    """
    mean = tree_sum(torch.stack([part.total for part in parts])) / sum(counts)
    between = [
        n * float(torch.linalg.vector_norm(part.total / n - mean)) ** 2 for n, part in zip(counts, parts, strict=True)
    ]
    return float(((sum(part.squares for part in parts) + sum(between)) / sum(counts)) ** 0.5)


def _pieces(b: int, plan: ExchangePlan, handles: Sequence[Handle], sizes: Sequence[int]) -> Pieces:
    made = dict(zip(plan.distinct(b), map(Piece, handles, sizes), strict=bool(sizes)))
    return {(b, c): made[key] for c, places in plan.out[b].items() if (key := places.tobytes()) in made}


def _ordered(plan: ExchangePlan, parts: Sequence[State]) -> State:
    """The rows of all blocks of the plan, in cohort order.

    parts: the rows of each block; {} stands for rows of zeros.
    """
    some: State = next((part for part in parts if part), {})
    order = torch.from_numpy(np.argsort(np.concatenate(list(plan.nodes.values())))) if some else None
    sized = list(zip(parts, map(len, plan.nodes.values()), strict=True))
    return {
        name: torch.cat([part[name] if part else like.new_zeros(n, *like.shape[1:]) for part, n in sized])[order]
        for name, like in some.items()
    }
