"""The contract of an algorithm: functions on matrices for its client half and its server half, and what it assumes.

A cohort of C clients is one matrix X [C, d]; rows are clients. The client half runs inside the local solver
(`raylfl.core.local`), the server half once a round:

    start_point   where client i starts                       (default: the broadcast x)
    start         what it carries through its local steps     (from the broadcast and its own state)
    direction     g -> v, the step taken is x <- x - eta v
    finish        what goes up, and its own new state
    server_step   the server's new state from the received uploads

State goes in and state comes out; nothing hides on `self`, whose fields are the options. The only state that
changes in place are a server's `Table`s. The solver takes care of unequal K_i, momentum, clipping, weight decay,
schedules and batch order; the round keeps the state of a client whose upload was lost.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from raylfl.core.population import Bools, Floats, Population, Round, SystemInfo
from raylfl.core.reduce import column
from raylfl.core.topology import Star, Topology
from raylfl.options import Options

State = dict[str, Tensor]  # clients, broadcasts, uploads: names to [d] or [C, d]
ServerState = dict[str, Any]  # Tensors, Tables and [N] vectors
Info = dict[str, float]  # logged as algo/<name>, read by no computation


@dataclass(frozen=True)
class Work:
    """The local work of C clients in one round.

    steps: K_i; a_norm: |a_i|_1; relative_weight: N w_i (exactly 1 for uniform weights), all float64 [C]; lr: eta.
    """

    steps: Floats
    a_norm: Floats
    relative_weight: Floats
    lr: float

    def per_step(self, like: Tensor) -> Tensor:
        """1 / (K_i eta) as a column [C, 1]: turns an update into a mean gradient. 1 / eta where K_i = 0."""
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
    """One federated optimisation method. Subclasses are dataclasses; each is one file and one paper."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Accepts hooks under their old names, with a warning."""
        super().__init_subclass__(**options)
        for old, new in RENAMED.items():
            if old in vars(cls):
                warnings.warn(f"{cls.__name__}.{old} is now called {new}", DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[old])

    topology: ClassVar[Topology] = Star()
    """Who exchanges models with whom: `Star` (clients in parallel), `Ring` (in sequence), `Alone` (all data in one)."""
    own_step: ClassVar[bool] = False
    """Its local step is defined by its paper as plain SGD: local momentum and module optimisers do not apply."""
    uploads_update: ClassVar[bool] = True
    """uploads["update"] is U_i = x_start - x_{i,K}, so update norms and gradient diversity can be measured."""
    assumes_full: ClassVar[bool] = False
    """Defined for full participation over perfect links; otherwise the run warns."""
    assumes_equal_steps: ClassVar[bool] = False
    """Defined for the same K at every client; otherwise the run warns."""
    one_step: ClassVar[bool] = False
    """One local step whatever `local` says."""
    keeps_memory: ClassVar[bool] = False
    """Server memory grows by d for every client seen."""
    server_known: ClassVar[tuple[str, ...]] = ()
    """Uploads that the server knows, as it sent them itself: not counted as traffic."""
    cut: str | None = None
    """The layer after which the model is split in two that exchange activations and gradients every step."""

    @property
    def proximal(self) -> float:
        """mu of a proximal local objective f_i + mu/2 |x - x_r|^2, for the a-vector; 0 without one."""
        return 0.0

    @property
    def full_gradient(self) -> bool:
        """Wants carry["full_gradient"]: the full-batch gradient of f_i at the starting point."""
        return False

    @property
    def samples_by_norm(self) -> bool:
        """Every available client computes, and uploads the norm of its update, before the server samples."""
        return False

    # -- state ---------------------------------------------------------------------------------------------

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        """The server before round 0; always holds "x" [d]."""
        return {"x": x.clone()}

    def init_clients(self, x: Tensor, count: int) -> State:
        """The state of `count` clients that have never taken part, rows [count, d]; x: the initial model."""
        return {}

    # -- clients: rows are clients, [C, d] -------------------------------------------------------------------

    def broadcast(self, server: ServerState) -> State:
        """What goes down to every client of the cohort; its floats are counted."""
        return {"x": server["x"]}

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        """Where the local steps begin: [d] (the same for all) or [C, d]."""
        return broadcast["x"]

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        """What the clients carry through their local steps, rows [C, d] (or [1, d]: the same for all).

        The solver adds carry["x_start"], to be read only: it may be the broadcast itself.
        """
        return {}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        """The direction v of x <- x - eta v, from the (clipped, decayed) gradient g; and the new carry."""
        return g, carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        """(what goes up, the clients' new state) after the last local step; default: the update U_i."""
        return {"update": carry["x_start"] - x}, {}

    # -- server ------------------------------------------------------------------------------------------------

    @abstractmethod
    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        """One round at the server. up: rows of the received clients, aligned with r (an `received_view`, R >= 1)."""

    def empty_round(self, server: ServerState, r: Round) -> ServerState:
        """A round in which nothing arrived: no vector moves; only counters of time do."""
        return server

    def update_clients(self, server: ServerState, uploads: State, client_state: State, r: Round) -> State | None:
        """The received clients' state once the server's answer reaches them; None: nothing is sent back.

        server: after its step. up, own: as the clients left them, rows aligned with r (received only).
        """
        return None

    def second_broadcast(self, server: ServerState) -> State:
        """What goes down to every received client for its `update_clients`; its floats are counted."""
        return {}

    # -- sampling and diagnostics --------------------------------------------------------------------------------

    def full_participation(self, server: ServerState, r: int) -> bool:
        """True where the method asks all N clients in round r (an initial full round)."""
        return False

    def draw_local_steps(self, rng: np.random.Generator) -> int | None:
        """K of all clients with data, where the method draws it; None: `local` says. rng: the round's."""
        return None

    def probabilities(self, server: ServerState, c: SystemInfo) -> Floats | None:
        """p [N] where the method itself samples clients, c.size draws with replacement; see `normalised_over`."""
        return None

    def norm_probabilities(self, server: ServerState, c: SystemInfo, norms: Floats) -> Floats:
        """p [N] of a method that `samples_by_norm`; norms: |U_i| of this round, [N], nan for the unavailable."""
        raise NotImplementedError(f"{type(self).__name__} does not probe")

    def expected_coefficients(self, c: SystemInfo, marginals: Floats, independent: bool = False) -> Floats | None:
        """E[c_i 1{i in R}] up to a common factor, [N], where known; marginals: E[s_i], [N].

        independent: each client is asked independently of the others, at most once, and M is random; else M
        is fixed. With |a_i|_1 it gives the surrogate weights Omega that the method really minimises (FedACS
        eq. 6).
        """
        return None

    def step_length(self, c: SystemInfo) -> float:
        """eta of this round; methods with `calibrate` rescale the configured c.lr (FedACS app. I.2)."""
        return c.lr


def overrides(algorithm: Algorithm, method: str) -> bool:
    """Whether the algorithm has a method of its own in place of the base class's."""
    return getattr(algorithm.__class__, method) is not getattr(Algorithm, method)


def normalised(weights: Floats) -> Floats:
    """weights / sum; uniform where they sum to 0 (no received client has a positive weight).

    >>> normalised(np.array([1.0, 3.0])).tolist(), normalised(np.zeros(2)).tolist()
    ([0.25, 0.75], [0.5, 0.5])
    """
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def normalised_over(scores: Floats, available: Bools) -> Floats:
    """p [N] proportional to the scores of the available clients, else 0; all 0 without a score > 0.

    >>> normalised_over(np.array([1.0, 1.0, 2.0]), np.array([True, False, True])).round(3).tolist()
    [0.333, 0.0, 0.667]
    """
    p = np.where(available, scores, 0.0)
    total = p.sum()
    return p / total if total > 0 else p
