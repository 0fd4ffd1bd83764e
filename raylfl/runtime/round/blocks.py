"""The rounds of a method without a server: the states of nodes stay on workers, and only messages travel.

The nodes are divided into blocks, as the config determines. The state of a block is one tensor per variable, with a row
for each node. The same worker runs the calls for a block in every round, unless this worker is lost. In a round,
the worker runs the local work of the block's nodes, passes messages by reference to the blocks that need them,
and mixes the block's rows with the messages that arrive (`raylfl.runtime.workers.nodes`). The process of the round loop
has the graph. It does not have the rows, only a report and measures of each block, such as the sum of the block's rows.
If all blocks are in the calling process, one call mixes the messages of all blocks, without copies.

Rows are passed by reference, and each call is a function of its arguments. A call whose worker is lost is therefore
repeated on another worker, and a checkpoint collects the rows of all blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms.graph import NODE, SPECTRUM, GraphAlgorithm
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.algorithm import Info, ServerState, State
from raylfl.core.arrays import Ints
from raylfl.core.costs import floats_in
from raylfl.core.deferred import Deferred
from raylfl.core.mixing import Mixing
from raylfl.core.population import Round
from raylfl.core.reduce import tree_sum
from raylfl.runtime.round.dispatch import Dispatch
from raylfl.runtime.round.exchange_plan import ALL, ExchangePlan
from raylfl.runtime.round.plan import drop_uploads
from raylfl.runtime.round.state import FederationState, RoundResult
from raylfl.runtime.workers.backend import BlockCall, Executor, Handle
from raylfl.runtime.workers.nodes import Measure, MixJob, PublishJob, Spread
from raylfl.runtime.workers.task import ClientReports, Task, joined_rows

BLOCKS = "blocks"  # in the server state: the handles of the blocks


class Piece(NamedTuple):
    """The messages from one block of nodes to another: a handle of the tensors, and their size in bytes."""

    handle: Handle
    size: int


Pieces = dict[tuple[int, int], Piece]  # by sending and receiving block
Worked = dict[
    int, tuple[Handle, Ints]
]  # block -> its rows after the local work, and the row numbers of its nodes there


@dataclass(kw_only=True)
class NodeResult(RoundResult):
    """The result of the nodes' local work in a round.

    uploads: only buffers and optimizer states, which the algorithm does not see (`UNSEEN`). plan: the exchange of
    messages among the whole cohort. local: for each block, a reference to its rows after the local work. pieces: the
    messages between blocks; None if messages precede the local work.
    """

    plan: ExchangePlan
    local: dict[int, Handle]
    pieces: Pieces | None


class GraphDispatch(Dispatch):
    """The blocks of a run's nodes, and the calls to the blocks' workers.

    count: the number of nodes; blocks: the number of blocks; optimum: x* [d] if known, for metrics.
    """

    algorithm: GraphAlgorithm

    def __init__(
        self,
        algorithm: GraphAlgorithm,
        backend: Executor,
        runtime: RuntimeConfig,
        count: int,
        blocks: int,
        optimum: Tensor | None,
    ):
        super().__init__(algorithm, backend, runtime)
        self.optimum = optimum
        self.nodes = np.array_split(np.arange(count), blocks)
        self._block = np.repeat(np.arange(blocks), [len(nodes) for nodes in self.nodes])
        self._row = np.concatenate([np.arange(len(nodes)) for nodes in self.nodes])
        self._measures: dict[int, Measure] = {}  # of each block's rows
        self._plan: ExchangePlan | None = None

    # -- the state -----------------------------------------------------------------------------------------------

    def scattered(self, server: ServerState) -> ServerState:
        """The server state in which handles replace the nodes' rows; the backend gets the rows, block by block."""
        self._measures.clear()
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

    def models(self, server: ServerState) -> Tensor:
        return torch.cat([self.algorithm.parameters(block) for block in self.backend.get(server[BLOCKS])])

    # -- a round -------------------------------------------------------------------------------------------------

    def send(self, r: Round, broadcast: State, state: FederationState) -> Deferred[RoundResult]:
        """The deferred local work of round r, with the messages that are sent after the local work.

        If the method exchanges messages before the local work, exchange and local work start when the result is
        awaited.
        """
        plan, start, last_loss = self._make_plan(r), state.server[BLOCKS], state.last_finite_loss
        if not self.algorithm.exchanges_first:
            return self._work(r, plan, broadcast, start, last_loss)

        def after_mixing() -> RoundResult:
            mixed = self._mix(plan, start, {}, self._publish(plan, start, {}))
            handles = [mixed[b][1] if b in mixed else handle for b, handle in enumerate(start)]
            return self._work(r, plan, broadcast, handles, last_loss).result()

        return Deferred(after_mixing)

    def step(self, server: ServerState, result: RoundResult) -> tuple[ServerState, Info]:
        """Mixes the nodes' rows, unless they were mixed before the local work; nodes that failed keep their rows."""
        assert isinstance(result, NodeResult)
        handles, r, planned = list(server[BLOCKS]), result.round.received_view, result.plan
        plan, pieces = planned, result.pieces
        worked: Worked = {b: (result.local[b], np.arange(len(nodes))) for b, nodes in planned.nodes.items()}
        if len(r.cohort) < len(planned.cohort):  # some nodes failed: matrices and messages change
            plan = self._make_plan(r)
            received = {b: np.flatnonzero(np.isin(planned.rows[b], plan.rows[b])) for b in plan.blocks}
            worked = {b: (result.local[b], rows) for b, rows in received.items()}
            pieces = None if pieces is None else self._publish(plan, handles, worked)
        for b, (measure, handle) in self._mix(plan, handles, worked, pieces).items():
            self._measures[b], handles[b] = measure, handle
        updated, measures, info = {**server, BLOCKS: handles}, self._measure(handles), Info()
        if len(r.cohort):
            updated["x"] = tree_sum(torch.stack([m.x.total for m in measures])) / len(self._block)
            info = self._info(plan.mixings[0], len(r.cohort), measures, updated["x"])
        result.metrics.update(self._worst(measures))
        return updated, info

    def uploads(self, result: RoundResult) -> State:
        assert isinstance(result, NodeResult)
        return _in_cohort_order(result.plan, self.backend.get([result.local[b] for b in result.plan.blocks]))

    def _make_plan(self, r: Round) -> ExchangePlan:
        """The plan of a round; the previous plan is reused if neither nodes nor matrices have changed."""
        mixings, last = self.algorithm.mixings(r), self._plan
        if last is None or last.mixings is not mixings or not np.array_equal(last.cohort, r.cohort):
            self._plan = last = ExchangePlan(r, self._block, self._row, mixings, self.backend.shared_memory)
        return last

    # -- calls ---------------------------------------------------------------------------------------------------

    def _work(
        self, r: Round, plan: ExchangePlan, broadcast: State, handles: Sequence[Handle], last_loss: float
    ) -> Deferred[RoundResult]:
        """The deferred local work of the blocks, which have these handles of their rows."""
        first = self.algorithm.exchanges_first
        calls, shared = [], self.backend.shared_broadcast(broadcast) if plan.blocks else None
        for b, nodes in plan.nodes.items():
            tasks = tuple(Task.of(r, some) for some in (nodes[:, None] if self.backend.one_by_one else [nodes]))
            job = PublishJob(plan.rows[b], None, (), tasks) if first else plan.sending(b, np.arange(len(nodes)), tasks)
            calls.append(BlockCall(b, "work", job, (shared, handles[b]), 2 + len(job.needed)))

        def collect(results: Sequence[Sequence[Handle]]) -> RoundResult:
            reports = ClientReports.joined([result[0].result.reports for result in results])
            self.ways.update(reports.ways)
            events = self._failures(r, reports, last_loss)
            got = drop_uploads(r, reports.bad["client"]) if events else r
            unseen = _in_cohort_order(plan, [result[0].result.uploads for result in results])
            along_edge = max((result[0].floats for result in results), default=0)
            pieces: Pieces = {}
            for b, result in zip(plan.blocks, results, strict=True):
                pieces |= _pieces(b, plan, result[2:], result[0].sizes)
            return NodeResult(
                round=got,
                reports=reports,
                uploads={name: rows[torch.from_numpy(np.flatnonzero(got.received))] for name, rows in unseen.items()},
                client_states=[],
                up_floats=along_edge + floats_in({name: rows[0] for name, rows in unseen.items()}),
                events=events,
                plan=plan,
                local={b: result[1] for b, result in zip(plan.blocks, results, strict=True)},
                pieces=None if first else pieces,
            )

        return self.backend.run_blocks(calls).then(collect)

    def _publish(self, plan: ExchangePlan, handles: Sequence[Handle], worked: Worked) -> Pieces:
        """Makes the blocks compute the messages of this plan; arguments as in `_mix`."""
        senders = [b for b in plan.blocks if plan.out[b]]
        calls = []
        for b in senders:
            after, rows = worked.get(b, (handles[b], None))
            job = plan.sending(b, rows)
            calls.append(BlockCall(b, "publish", job, (handles[b], after), 1 + len(job.needed)))
        results = self.backend.run_blocks(calls).result()
        pieces: Pieces = {}
        for b, result in zip(senders, results, strict=True):
            pieces |= _pieces(b, plan, result[1:], result[0])
        return pieces

    def _mix(
        self, plan: ExchangePlan, handles: Sequence[Handle], worked: Worked, pieces: Pieces | None
    ) -> dict[int, tuple[Measure, Handle]]:
        """Mixes the rows of the working blocks; returns each block's measure and a handle of its new rows.

        handles: the rows of each block before the local work. worked: of each block after it; empty if messages precede
        it. pieces: the messages; None if they were mixed before the local work, whose results are then the new rows.
        """
        calls, mixed = list[BlockCall](), dict[int, Handle]()
        if plan.exchange is not None and pieces is not None:  # one call mixes the messages of all blocks
            sent = tuple(pieces[b, ALL].handle for b in plan.blocks)
            call = BlockCall(plan.blocks[0], "exchange", plan.exchange, sent, 1 + len(sent))
            ((_, *messages),) = self.backend.run_blocks([call]).result()
            mixed = dict(zip(plan.blocks, messages, strict=True))
        for b in plan.blocks:
            after, rows = worked.get(b, (handles[b], None))
            parts = () if pieces is None else None if mixed else plan.parts(b)
            taken = {} if pieces is None else {c: pieces[c, b] for c in plan.into[b]}
            messages = [mixed[b]] if mixed else [piece.handle for piece in taken.values()]
            job = MixJob(plan.rows[b], rows, parts, self.optimum)
            arriving = tuple((c, piece.size) for c, piece in taken.items())
            calls.append(BlockCall(b, "mix", job, (handles[b], after, *messages), 2, arriving))
        results = self.backend.run_blocks(calls).result()
        return {b: (measure, handle) for b, (measure, handle) in zip(plan.blocks, results, strict=True)}

    # -- measures ------------------------------------------------------------------------------------------------

    def _measure(self, handles: Sequence[Handle]) -> list[Measure]:
        """The measures of every block, of which those that have not worked so far are measured now."""
        unknown = [b for b in range(len(handles)) if b not in self._measures]
        none = np.zeros(0, dtype=np.int64)
        job = MixJob(none, none, (), self.optimum)  # gives no node new rows: only measures
        results = self.backend.run_blocks([BlockCall(b, "mix", job, (handles[b], handles[b]), 2) for b in unknown])
        for b, (measure, _) in zip(unknown, results.result(), strict=True):
            self._measures[b] = measure
        return [self._measures[b] for b in range(len(handles))]

    def _info(self, mixing: Mixing, working: int, measures: Sequence[Measure], x: Tensor) -> Info:
        """The algorithm's metrics of a round, from the measures of all blocks.

        consensus_error is the root mean square distance of the nodes' parameters from x [d], the mean of their rows.
        tracking_error is the same distance of the variable of gradient tracking from its own mean, and is left out for
        other methods. components (of the graph) and spectral_gap (of the mixing matrix) belong to the round. working:
        the number of nodes that take part in the round; spectral_gap is left out for more than SPECTRUM nodes.
        """
        counts = [m.nodes for m in measures]
        info = {"consensus_error": spread(counts, [m.parameters or m.x for m in measures], x)}
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


def spread(counts: Sequence[int], parts: Sequence[Spread], center: Tensor | None = None) -> float:
    """The root mean square distance of rows from a center, computed from the spread of each part of the rows.

    counts: the number of rows n_b of each part b. center: m [d]; None: the mean of all rows. With the mean m_b of part
    b, sum_i |x_i - m|^2 = sum_b (sum_(i in b) |x_i - m_b|^2 + n_b |m_b - m|^2), which avoids cancellation.
    """
    mean = tree_sum(torch.stack([part.total for part in parts])) / sum(counts) if center is None else center
    between = [
        n * float(torch.linalg.vector_norm(part.total / n - mean)) ** 2 for n, part in zip(counts, parts, strict=True)
    ]
    return float(((sum(part.squares for part in parts) + sum(between)) / sum(counts)) ** 0.5)


def _pieces(b: int, plan: ExchangePlan, handles: Sequence[Handle], sizes: Sequence[int]) -> Pieces:
    """The messages from block b to each other block; empty if the local work of all nodes of block b failed.

    handles, sizes: handle and bytes of each distinct set of messages, in the order of `plan.distinct(b)`; `sizes` is
    empty if all local work failed.
    """
    made = dict(zip(plan.distinct(b), map(Piece, handles, sizes), strict=bool(sizes)))
    return {(b, c): made[key] for c, places in plan.out[b].items() if (key := places.tobytes()) in made}


def _in_cohort_order(plan: ExchangePlan, parts: Sequence[State]) -> State:
    """The rows of all blocks of the plan, in cohort order.

    parts: the rows of each block; {} stands for rows of zeros.
    """
    rows = joined_rows(parts, [len(nodes) for nodes in plan.nodes.values()])
    if not rows:
        return {}
    order = torch.from_numpy(np.argsort(np.concatenate(list(plan.nodes.values()))))
    return {name: values[order] for name, values in rows.items()}
