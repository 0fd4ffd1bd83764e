"""An extrapolation to 64 GPUs on 8 nodes: traffic of each link in a round, counted on trees of random cohorts."""

import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.pages import table
from benchmarks.sums import WIDTH
from raylfl.core.arrays import Ints
from raylfl.core.partial_sums import SumPlan, depth_first
from raylfl.core.placement import assign

NODES, WORKERS, CLIENTS, UPLOADS, DRAWS = 8, 64, 10**6, 640, 5
VECTOR = 4 * WIDTH / 1e9  # GB of one upload
LINK = 12.5  # GB/s, 100 Gbit/s


def nodes_of(workers: Ints) -> Ints:
    """The node of each of these workers; the workers of a node have consecutive numbers."""
    return workers * NODES // WORKERS


def vectors(nodes: Ints) -> int:
    """The number of vectors left on all nodes after each has summed its own; nodes: the node of each row."""
    plan = SumPlan.of(np.arange(len(nodes)), {"a": ("up", np.ones(len(nodes)))}, torch.float32)
    every = [np.flatnonzero(nodes == k).tolist() for k in range(NODES)]
    return sum(len(sums) for own in every for sums in plan.parts(own, [{"up": torch.zeros(len(own), 1)}]) if own)


@cache
def counts() -> dict[str, float]:
    """The mean number of vectors on all nodes, by the rule that places clients, for uniformly drawn cohorts."""
    rng, order = np.random.default_rng(0), depth_first(UPLOADS)
    worker = assign(np.ones(CLIENTS, dtype=np.int64), WORKERS)
    pinned, ranges, neighbours = list[int](), list[int](), list[int]()
    for _ in range(DRAWS):
        cohort = np.sort(rng.choice(CLIENTS, UPLOADS, replace=False))
        pinned.append(vectors(nodes_of(worker[cohort])))
        contiguous = nodes_of(cohort * WORKERS // CLIENTS)
        ranges.append(vectors(contiguous))
        neighbours.append(vectors(contiguous[order]))
    return {
        "shared": vectors(nodes_of(order * WORKERS // UPLOADS)),
        "pinned": float(np.mean(pinned)),
        "ranges": float(np.mean(ranges)),
        "neighbours": float(np.mean(neighbours)),
    }


def busiest(workers: int, uploads: int) -> float:
    """The mean number of sampled clients of the busiest worker, for uniformly drawn clients."""
    drawn = np.random.default_rng(0).multinomial(uploads, np.full(workers, 1 / workers), size=1000)
    return float(drawn.max(axis=1).mean())


def ways(found: dict[str, float]) -> list[dict[str, Any]]:
    """The traffic in one direction of the busiest link of a node or the server, for each way that uploads travel."""
    share = (NODES - 1) / NODES / NODES  # share of all vectors that a node sends or receives if columns are divided
    cases = [
        ("rows to the server", UPLOADS, UPLOADS, False),
        ("sums, `shared`", 1, found["shared"] * share, True),
        ("sums, `pinned`", 1, found["pinned"] * share, True),
        ("sums, `pinned`, joined on nodes only", found["pinned"], found["pinned"], False),
    ]
    return [
        {
            "uploads": name,
            "vectors to the server": f"{server:.0f}",
            "vectors on the busiest link": f"{max(link, server):.1f}" if divided else f"{link:.0f}",
            "GB": f"{max(link, server) * VECTOR:.2g}",
            "seconds at 100 Gbit/s": f"{max(link, server) * VECTOR / LINK:.2g}",
        }
        for name, server, link, divided in cases
    ]


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The part `nodes` of docs/scaling.md; rows: from `ways`."""
    found, each, gigabytes = counts(), UPLOADS // WORKERS, UPLOADS * VECTOR
    own, sent = UPLOADS // NODES, found["pinned"] * (NODES - 1) / NODES**2
    mean = {m: m / WORKERS / busiest(WORKERS, m) for m in (WORKERS, UPLOADS, 100 * WORKERS)}
    points = [
        f"""**Broadcast.** {1e3 * VECTOR:.0f} MB go to each node, {NODES * VECTOR:.2f} GB through the server's link.""",
        f"""**Rows break first**: {gigabytes:.0f} GB to the server in every round, for methods whose server reads single
        uploads (FedAWARE, FedMGDA+, memories).""",
        f"""**Pinned sums are long.** The nodes can only reduce {UPLOADS} uploads to {found["pinned"]:.0f} vectors,
        because the cohort fixes the tree of a sum. If workers had ranges of clients, {found["ranges"]:.0f} would
        remain: the tree first adds uploads k and k + {UPLOADS // 2} of the cohort in the order of its clients. If it
        first added neighbours, ranges would leave {found["neighbours"]:.0f}, but every run would have other bits.
        Columns are independent in any tree: each node completes an eighth of them, and all links share the vectors.""",
        f"""**Sums that do not depend on grouping** (fixed-point or binned accumulators, not implemented) would let a
        node send one accumulator, in 64-bit fixed point as large as 2 vectors, instead of {sent:.0f} vectors. They
        would save {sent * VECTOR / LINK:.2f} s a round on the links. But every run would have other bits, with an error
        that depends on a scale, and a common scale needs one more pass over the uploads and one more exchange before
        they are added up.""",
        f"""**Object store.** With pinned clients a node has the sums of its workers, at most {own} vectors, the parts
        into which it cuts them, and the parts that it receives: at most {3 * own * VECTOR:.0f} GB. Rows take
        {own * VECTOR:.1f} GB on each node, and {gigabytes:.0f} GB on the server's. `runtime.object_store_mb` sets the
        size of the store; beyond it Ray spills to disk, and rounds slow down to the disk's speed.""",
        f"""**Memory of a worker.** It keeps the uploads of its clients of a round, {each} vectors here, until it adds
        them up.""",
        f"""**Busiest worker.** A pinned round is as long as its busiest worker. Of {UPLOADS} clients drawn at random
        for {WORKERS} workers, {each} each on average, the busiest has {busiest(WORKERS, UPLOADS):.0f}: the GPUs work
        {mean[UPLOADS]:.0%} of the time ({mean[WORKERS]:.0%} with one client per GPU, {mean[100 * WORKERS]:.0%} with
        100). With `shared` each has {each}. Drawing the cohort by workers (not implemented) would balance the work, if
        the data allow it.""",
    ]
    text = [
        textwrap.fill(" ".join(f"- {point}".split()).replace("%", "\u00a0%"), 116, subsequent_indent="  ")
        for point in points
    ]
    return f"\n{table(rows)}\n\n" + "\n".join(text).replace("\u00a0", " ") + "\n"
