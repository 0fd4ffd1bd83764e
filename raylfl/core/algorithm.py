"""The contract of an algorithm: its client half, its server half, its sampling and its assumptions.

A cohort of C clients is one matrix X [C, d]; rows are clients. The client half runs inside the local solver
(`raylfl.core.local`), the server half once a round:

    start_point   where client i starts                       (default: the broadcast x)
    start         the carry of its local steps                (from the broadcast and the client state)
    direction     g -> v; the step is x <- x - eta v
    finish        the upload and the new client state
    server_step   the server's new state from the received uploads

State    goes in and state comes out: the fields of `self` are the options, never state. The only state that changes in
place is a server's `Table`. The local solver handles unequal K_i, momentum, clipping, weight decay, schedules and
batch order. A client whose upload was lost keeps its old state.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from raylfl.core.costs import floats_in
from raylfl.core.population import Bools, Floats, Population, Round, SystemInfo
from raylfl.core.reduce import column
from raylfl.core.topology import Star, Topology
from raylfl.options import Options

State = dict[str, Tensor]  # clients, broadcasts, uploads: names to [d] or [C, d]
ServerState = dict[str, Any]  # Tensors, Tables and [N] vectors
Info = dict[str, float]  # logged as algo/<name>; no computation reads it


@dataclass(frozen=True)
class Work:
    """The local work of C clients in one round.

    steps: K_i, the local steps of client i; a_norm: |a_i|_1, where a_i is its accumulation vector
    (`raylfl.core.local_rule.a_vector`); relative_weight: N w_i, where w_i is its importance weight and N the number of
    clients of the run (exactly 1 for uniform weights); all float64 [C]. lr: eta, the local learning rate.
    """

    steps: Floats
    a_norm: Floats
    relative_weight: Floats
    lr: float

    def per_step(self, like: Tensor) -> Tensor:
        """The factors 1 / (K_i eta) as a column [C, 1]; 1 / eta if K_i = 0.

        They turn updates into mean gradients. like: a tensor with the dtype and device of the column.
        """
        return column(1.0 / (np.maximum(self.steps, 1.0) * self.lr), like)


RENAMED = {  # hooks by their names before 0.1; accepted for one release
    "idle": "empty_round",
    "everybody": "full_participation",
    "acknowledge": "update_clients",
    "answer": "second_broadcast",
    "known": "server_known",
    "probes": "samples_by_norm",
    "probe_probabilities": "norm_probabilities",
    "common_steps": "draw_local_steps",
}


class Algorithm(Options, ABC):
    """A federated optimisation method. Each subclass is a dataclass in a file of its own and follows one paper."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Accepts methods of the subclass under their old names (`RENAMED`), with a warning."""
        super().__init_subclass__(**options)
        for old, new in RENAMED.items():
            if old in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is now called {new}", DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[old])

    topology: ClassVar[Topology] = Star()
    """The exchange of models: `Star` (clients in parallel), `Ring` (in sequence), `Alone` (all data in one place) or
    `Peers` (no server: rows that nodes keep, mixed along the edges of a graph)."""
    own_step: ClassVar[bool] = False
    """The paper defines the local step: `local.momentum`, `optimizer` and `optimizer_state` do not apply."""
    uploads_update: ClassVar[bool] = True
    """uploads["update"] is U_i = x_start - x_{i,K}, so update norms and gradient diversity can be measured."""
    assumes_full: ClassVar[bool] = False
    """The method needs full participation over perfect links; other runs warn."""
    assumes_equal_steps: ClassVar[bool] = False
    """The method needs the same K at every client; other runs warn."""
    weighs_by_work: ClassVar[bool] = False
    """The method weighs updates or clients by |a_i|_1, which is defined for SGD only."""
    one_step: ClassVar[bool] = False
    """Every client takes one local step; `local.steps` and `local.epochs` do not apply."""
    keeps_memory: ClassVar[bool] = False
    """The server keeps a vector [d] for every client received so far."""
    server_known: ClassVar[tuple[str, ...]] = ()
    """Names of uploads that the server computes itself, so that they are not counted as traffic."""
    cut: str | None = None
    """The layer after which the model is split; its halves exchange activations and gradients in every local step."""

    @property
    def proximal(self) -> float:
        """The factor mu of a proximal term mu/2 |x - x_r|^2 in the local objectives; 0: no such term.

        x_r is the broadcast model. The accumulation vectors depend on mu.
        """
        return 0.0

    @property
    def full_gradient(self) -> bool:
        """Whether the method reads carry["full_gradient"], a client's full-batch gradient at its starting point."""
        return False

    @property
    def samples_by_norm(self) -> bool:
        """Whether every available client trains and uploads the norm of its update before the server samples."""
        return False

    # -- state ---------------------------------------------------------------------------------------------

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        """The server state before round 0; always holds "x" [d]."""
        return {"x": x.clone()}

    def init_clients(self, x: Tensor, count: int) -> State:
        """The states of `count` clients before their first round, rows [count, d]; x: the initial model [d]."""
        return {}

    def node_parameters(self, server: ServerState) -> Tensor | None:
        """The parameters [N, d] of all nodes of a method without a server; None for methods with a server."""
        return None

    # -- clients: rows are clients, [C, d] -------------------------------------------------------------------

    def broadcast(self, server: ServerState) -> State:
        """The vectors that the server sends to every client of the cohort, by name; their floats count as downlink."""
        return {"x": server["x"]}

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        """The starting point of the local steps: [d] (the same for all clients) or [C, d]."""
        return broadcast["x"]

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        """The carry of the local steps, which each step receives and returns: rows [C, d] by name.

        Rows [1, d] are the same for all clients. The local solver adds carry["x_start"], which must not be written: it
        may be the broadcast itself.
        """
        return {}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        """The direction v [C, d] of x <- x - eta v, and the new carry.

        g [C, d]: the gradients after clipping and weight decay, which may be kept or overwritten. Of the carry, only
        tensors that `start` or an earlier step has created may be overwritten. x must not be.
        """
        return g, carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        """(uploads, new client states) after the last local step; default: the update U_i = x_start - x, no state."""
        return {"update": carry["x_start"] - x}, {}

    def sent_floats(self, uploads: State) -> int:
        """The number of floats in one client's upload that are counted as traffic.

        uploads: rows [C, ...] by name, C >= 1. Names in `server_known` are not counted.
        """
        return floats_in({name: rows[0] for name, rows in uploads.items() if name not in self.server_known})

    # -- server ------------------------------------------------------------------------------------------------

    @abstractmethod
    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        """The server step of one round: (new server state, info).

        uploads: rows of the received clients; r: the round as the server sees it (`Round.received_view`), with at
        least one received client; row k of the uploads is from client r.cohort[k].
        """

    def empty_round(self, server: ServerState, r: Round) -> ServerState:
        """The server state after a round without a received upload: only counters of rounds may change."""
        return server

    def update_clients(self, server: ServerState, uploads: State, client_state: State, r: Round) -> State | None:
        """The received clients' states after the second broadcast; None without a second broadcast.

        server: the state after the server step. uploads, client_state: as after the local work, rows aligned with
        r.cohort (received clients only).
        """
        return None

    def second_broadcast(self, server: ServerState) -> State:
        """The vectors that the server sends to every received client for `update_clients`; they count as downlink."""
        return {}

    # -- sampling and diagnostics --------------------------------------------------------------------------------

    def full_participation(self, server: ServerState, r: int) -> bool:
        """Whether the method samples all N clients in round r, as in an initial full round."""
        return False

    def draw_local_steps(self, rng: np.random.Generator) -> int | None:
        """The number K of local steps of all clients with data, if the method draws it; None: the config sets it.

        rng: the round's generator.
        """
        return None

    def probabilities(self, server: ServerState, c: SystemInfo) -> Floats | None:
        """Sampling probabilities p [N], for methods that draw c.size clients with replacement; None for all others.

        c: the system state before the round. See `normalised_over` for probabilities over the available clients.
        """
        return None

    def norm_probabilities(self, server: ServerState, c: SystemInfo, norms: Floats) -> Floats:
        """Sampling probabilities p [N] of a method with `samples_by_norm`.

        c: the system state before the round. norms: the norm of each client's update in this round [N], nan for
        unavailable clients. Raises NotImplementedError for other methods.
        """
        raise NotImplementedError(f"{type(self).__name__} does not sample by norms")

    def expected_coefficients(self, c: SystemInfo, marginals: Floats, independent: bool = False) -> Floats | None:
        """Expected aggregation coefficients E[c_i 1{i in R}] [N], up to a common factor; None without a closed form.

        R is the set of received clients. c_i is the factor of client i's update in the server step; it is not the
        argument `c`, the system state before the round. marginals: E[s_i] [N], where s_i is the number of times that
        client i is drawn. independent: each client is drawn at most once, independently of the others, so that the
        total number of draws M is random; otherwise M is fixed.

        Multiplied by |a_i|_1, the norms of the accumulation vectors, and divided by their sum, these coefficients are
        the surrogate weights Omega_i of the objective that the method really minimises (FedACS, eq. (6)).
        """
        return None

    def step_length(self, c: SystemInfo) -> float:
        """The local learning rate eta of this round; methods with `calibrate` rescale c.lr (FedACS, app. I.2)."""
        return c.lr


def overrides(algorithm: Algorithm, method: str) -> bool:
    """Whether the algorithm's class overrides this method of `Algorithm`."""
    return getattr(algorithm.__class__, method) is not getattr(Algorithm, method)


def normalised(weights: Floats) -> Floats:
    """Weights divided by their sum [C]; uniform if the sum is 0 (no received client has a positive weight).

    >>> normalised(np.array([1.0, 3.0])).tolist(), normalised(np.zeros(2)).tolist()
    ([0.25, 0.75], [0.5, 0.5])
    """
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def normalised_over(scores: Floats, available: Bools) -> Floats:
    """Probabilities p [N] proportional to the scores of the available clients; all 0 if none has a score > 0.

    >>> normalised_over(np.array([1.0, 1.0, 2.0]), np.array([True, False, True])).round(3).tolist()
    [0.333, 0.0, 0.667]
    """
    p = np.where(available, scores, 0.0)
    total = p.sum()
    return p / total if total > 0 else p
