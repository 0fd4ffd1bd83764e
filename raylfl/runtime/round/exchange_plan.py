"""The plan of an exchange between blocks of nodes: which rows each block needs from each other block."""

from collections.abc import Sequence

import numpy as np

from raylfl.core.arrays import Ints
from raylfl.core.mixing import Mixing
from raylfl.core.mixing_rows import MixingRows
from raylfl.core.population import Round
from raylfl.runtime.workers.nodes import PublishJob
from raylfl.runtime.workers.task import Task

ALL = -1  # the receiver of messages that are mixed for all blocks at once


class ExchangePlan:
    """The exchange of one round: the rows that each block of nodes needs from each other block.

    Nodes are numbered by their positions in the round's cohort.
    """

    def __init__(self, r: Round, blocks: Ints, rows: Ints, mixings: Sequence[Mixing], shared_memory: bool):
        """The plan of round r.

        blocks: for each node of the run, the number of its block [N]; rows: the node's row number in that block [N].
        mixings: the round's mixing matrices. shared_memory: whether all blocks are in one process.
        """
        self.mixings, self.cohort, block, row = mixings, r.cohort, blocks[r.cohort], rows[r.cohort]
        self._parts: dict[int, tuple[MixingRows, ...]] = {}
        self.nodes = {b: np.flatnonzero(block == b) for b in np.unique(block).tolist()}
        self.blocks = list(self.nodes)
        self.rows = {b: row[nodes] for b, nodes in self.nodes.items()}
        self.needs: dict[int, Ints] = {}
        self.into: dict[int, dict[int, Ints]] = {b: {} for b in self.blocks}  # receiver -> sender -> places in `needs`
        self.out: dict[int, dict[int, Ints]] = {b: {} for b in self.blocks}  # sender -> receiver -> places in `nodes`
        self.exchange: tuple[MixingRows, ...] | None = None  # of all blocks at once; None: each block mixes alone
        if shared_memory and self.blocks:
            order = np.concatenate(list(self.nodes.values()))
            self.exchange = tuple(m.rows_of(order, order) for m in mixings)
            self.out = {b: {ALL: np.arange(len(nodes))} for b, nodes in self.nodes.items()}
            return
        position = np.zeros(len(block), dtype=np.int64)  # of each node of the cohort within its block
        for nodes in self.nodes.values():
            position[nodes] = np.arange(len(nodes))
        for b, nodes in self.nodes.items():
            needs = self.needs[b] = np.unique(np.concatenate([m.needs(nodes) for m in self.mixings]))
            for c in np.unique(block[needs]).tolist():
                if c != b:
                    self.into[b][c] = np.flatnonzero(block[needs] == c)
                    self.out[c][b] = position[needs[self.into[b][c]]]

    def parts(self, b: int) -> tuple[MixingRows, ...]:
        """The rows of the mixing matrices that give the new rows of block b, one `MixingRows` per matrix.

        The columns stand for the block's own rows first, then for the messages of each other block.
        """
        if b not in self._parts:
            nodes, needs = self.nodes[b], self.needs[b]
            order = np.concatenate([np.flatnonzero(np.isin(needs, nodes)), *self.into[b].values()])
            self._parts[b] = tuple(mixing.rows_of(nodes, needs[order]) for mixing in self.mixings)
        return self._parts[b]

    def sending(self, b: int, local: Ints | None, tasks: tuple[Task, ...] = ()) -> PublishJob:
        """The argument of block b's operation `publish` or `work`; local, tasks: as in `PublishJob`."""
        return PublishJob(self.rows[b], local, tuple(self.distinct(b).values()), tasks)

    def distinct(self, b: int) -> dict[bytes, Ints]:
        """The distinct sets of rows that other blocks need from block b, as positions in `nodes[b]`.

        Blocks that need the same rows share one set. The key of a set is the bytes of its array.
        """
        return {places.tobytes(): places for places in self.out[b].values()}
