"""The clients of a run (Population, ClientShards), a sampled round (Round), the system state before it (SystemInfo).

They hold numbers per client and per sample; none holds a vector of the model's width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from raylfl.core.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from raylfl.core.mixing import Edges


@dataclass(frozen=True)
class ClientShards:
    """The sample indices of each client, in one array that processes can share.

    N clients have n_i samples each. indices: their sample indices, int64 [sum n_i]. offsets: int64 [N + 1]; client i
    owns the samples indices[offsets[i]:offsets[i+1]].
    """

    indices: Ints
    offsets: Ints

    @staticmethod
    def of(clients: Sequence[Ints]) -> ClientShards:
        return ClientShards(np.concatenate(clients).astype(np.int64), np.cumsum([0, *map(len, clients)]))

    def __getitem__(self, client: int) -> Ints:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def of_clients(self, clients: Ints) -> list[Ints]:
        """The sample indices of each of these clients."""
        ends = zip(self.offsets[clients].tolist(), self.offsets[clients + 1].tolist(), strict=True)
        return [self.indices[a:b] for a, b in ends]

    @property
    def sizes(self) -> Ints:
        """The number of samples n_i of each of the N clients, int64 [N]."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Population:
    """The N clients of a run.

    sizes: n_i, the number of training samples of client i, int64 [N]. weights: importance weights w_i >= 0,
    float64 [N], sum 1.
    """

    sizes: Ints
    weights: Floats

    @property
    def count(self) -> int:
        """The number of clients N."""
        return len(self.sizes)

    @staticmethod
    def of(sizes: Ints, weights: str = "uniform") -> Population:
        """Clients of these sizes; weights: `uniform` (w_i = 1/N) or `data_size` (w_i = n_i / sum_j n_j)."""
        sizes = np.asarray(sizes, dtype=np.int64)
        w = np.full(len(sizes), 1.0 / len(sizes)) if weights == "uniform" else sizes / sizes.sum()
        return Population(sizes, w)


@dataclass(frozen=True)
class Round:
    """Round r: the sampled clients, their draws, their local work, and which uploads were received.

    index: r. cohort: distinct ids of the sampled clients [C], in the order of execution; entry k of the other arrays
    [C] belongs to cohort[k]. draws: s_i, how often each client was drawn [C]. received: whether each upload was
    received, bool [C]. steps: the numbers of local steps K_i [C]. batch_sizes: samples per local step [C]. lr: the
    local learning rate eta. a_norm: |a_i|_1, the norms of the accumulation vectors
    (`raylfl.core.local_rule.a_vector`) [C]. failure: q_i, the probability that an upload is lost [C]. inclusion: p_i,
    the probability of a client in one draw with replacement (sum 1 over all N clients) [C]. Unknown entries of
    `failure` and `inclusion` are nan.

    by_method: whether the method itself sampled the clients, with the probabilities `inclusion`. edges: the graph of
    the round for methods without a server, else None. system_of: computes `system`.
    """

    index: int
    cohort: Ints
    draws: Ints
    received: Bools
    steps: Ints
    batch_sizes: Ints
    lr: float
    population: Population
    a_norm: Floats
    failure: Floats
    inclusion: Floats
    by_method: bool = False
    edges: Edges | None = None
    unfiltered: Round | None = None  # in rounds made by `received_view` and `lost`: the whole round
    system_of: Callable[[], SystemInfo] | None = None

    @property
    def system(self) -> SystemInfo | None:
        """The system state of all N clients before the round was sampled; None without `system_of`."""
        return None if self.system_of is None else self.system_of()

    @cached_property
    def received_view(self) -> Round:
        """This round restricted to the clients whose uploads were received, in the same order."""
        return self._only(received=True)

    @cached_property
    def lost(self) -> Round:
        """This round restricted to the sampled clients whose uploads were lost, in the same order."""
        return self._only(received=False)

    def _only(self, received: bool) -> Round:
        unfiltered = self.unfiltered or self
        keep = unfiltered.received == received
        rows = ("cohort", "draws", "received", "steps", "batch_sizes", "a_norm", "failure", "inclusion")
        some = {} if keep.all() else {name: getattr(unfiltered, name)[keep] for name in rows}
        return replace(unfiltered, unfiltered=unfiltered, **some)

    @property
    def total_draws(self) -> int:
        """The number of draws M, the sum of s_i over all sampled clients, even in a `received_view`."""
        return int((self.unfiltered or self).draws.sum())

    @property
    def weights(self) -> Floats:
        """The importance weights w_i of the clients in `cohort`, [C]."""
        return self.population.weights[self.cohort]


@dataclass(frozen=True)
class SystemInfo:
    """The state of all N clients before a round is sampled; sampling probabilities and learning rates depend on it.

    index: the number of the round. failure: q_i, the probability that an upload is lost [N], nan if it is unknown.
    a_norm: |a_i|_1, the norms of the accumulation vectors (`raylfl.core.local_rule.a_vector`) [N]. available: whether
    each client can be sampled, bool [N]. lr: the configured local learning rate eta of this round. size: the configured
    number of draws M.
    """

    index: int
    population: Population
    failure: Floats
    a_norm: Floats
    available: Bools
    lr: float
    size: int
