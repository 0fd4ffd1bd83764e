"""Messages between blocks of nodes on several workers: which rows travel, and their bytes."""

from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import torch

from raylfl.core.mixing import Edges, matrices
from raylfl.core.population import Population
from raylfl.heterogeneity.links.bernoulli import Bernoulli
from raylfl.heterogeneity.topologies import TOPOLOGIES
from raylfl.heterogeneity.world import RunContext
from raylfl.runtime.round.exchange_plan import ALL, ExchangePlan
from raylfl.runtime.session import rows_in_process
from raylfl.testing.runs import RandomWorkers, carry_out
from tests.runtime.test_graph_runs import PROBLEM

BLOCKS, ROWS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3]), np.array([0, 1, 2, 0, 1, 0, 1, 2, 0])
WORLD = RunContext(0, Population.of(np.ones(9)), 1)
X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def planned(name, cohort, shared_memory=False):
    graph = TOPOLOGIES.get(name).cls()
    edges = graph.edges(0, WORLD, Bernoulli(q=0.2))
    mixings = matrices(edges, np.array(cohort), "pair" if graph.directed else "doubly")
    return ExchangePlan(SimpleNamespace(cohort=np.array(cohort)), BLOCKS, ROWS, mixings, shared_memory), mixings


def test_a_block_sends_no_row_that_is_not_needed():
    plan, _ = planned("ring", list(range(9)))
    sent = {(c, b): plan.nodes[c][places].tolist() for c, out in plan.out.items() for b, places in out.items()}
    arrives = TOPOLOGIES.get("ring").cls().edges(0, WORLD, Bernoulli(q=0.2))
    ends = {(int(a), int(b)) for (a, b), here in zip(arrives.pairs, arrives.arrives, strict=True) if here}
    kept = {(a, b) for a, b in ends if (b, a) in ends and BLOCKS[a] != BLOCKS[b]}
    assert {(int(a), int(BLOCKS[b])) for a, b in kept} == {(a, b) for (_, b), rows in sent.items() for a in rows}


def test_blocks_that_need_the_same_rows_share_one_message():
    """Three blocks of two nodes: on the complete graph each sends one piece to both others; on a ring, two pieces."""
    block, row, nodes = np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3), np.arange(6)
    ring = Edges(6, np.array([(i, (i + s) % 6) for i in nodes for s in (1, 5)]), np.ones(12, dtype=bool))
    for edges, pieces in ((Edges.complete(6), 1), (ring, 2)):
        r = SimpleNamespace(cohort=nodes)
        plan = ExchangePlan(r, block, row, [edges.doubly(nodes)], shared_memory=False)
        assert [len(plan.out[b]) for b in range(3)] == [2, 2, 2]
        assert [len(plan.sending(b, None).needed) for b in range(3)] == [pieces] * 3


def test_in_one_process_the_messages_of_all_blocks_are_mixed_at_once():
    plan, (mixing, *_) = planned("star", [8, 0, 2, 3], shared_memory=True)
    x = X[[8, 0, 2, 3]]
    order = np.concatenate(list(plan.nodes.values()))
    assert torch.equal(plan.exchange[0](x[order]), mixing(x)[order])
    assert [plan.out[b][ALL].tolist() for b in plan.blocks] == [[0, 1], [0], [0]]


class Weighing(RandomWorkers):
    """A backend that compares the bytes that a call says arrive with the messages that it gets."""

    weighed: ClassVar[list[int]] = []

    def run_blocks(self, calls):
        for call in calls:
            if call.operation == "mix":
                arrived = [sum(rows.nbytes for rows in piece.values()) for piece in call.handles[2:]]
                assert [size for _, size in call.arriving] == arrived
                assert call.block not in dict(call.arriving)
                self.weighed.extend(arrived)
        return super().run_blocks(calls)


def test_the_bytes_that_blocks_are_said_to_send_each_other_are_the_bytes_of_their_messages(tmp_path):
    Weighing.weighed.clear()
    carry_out(PROBLEM, tmp_path / "run", rows=partial(rows_in_process, make=Weighing))
    assert Weighing.weighed
    assert all(size and size % (2 * 3 * 8) == 0 for size in Weighing.weighed)  # rows of x and y, d = 3 doubles
