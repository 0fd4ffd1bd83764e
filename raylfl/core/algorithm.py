"""The interface of an algorithm: client computations, server step, sampling and assumptions.

A cohort is the set of clients sampled in a round. The parameters of its C clients form one matrix X [C, d] with one row
per client. The local solver (`raylfl.core.local`) calls the first four methods, and the round calls `server_step`:

    start_point   starting point of the local steps                    (default: the broadcast x)
    start         the first carry, a dict of tensors that each local step receives and returns
    direction     gradient g -> direction v of the local step x <- x - eta v, with learning rate eta
    finish        uploads and new client states, after the last local step
    server_step   new server state, from the received uploads

Methods take states as arguments and return new states; the fields of `self` are options, never state. The only state
that changes in place is a server's `Table` (`raylfl.core.client_rows`). The local solver takes unequal numbers of
local steps K_i, momentum, clipping, weight decay, schedules and batch order. A client whose upload was lost keeps its
old state.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raylfl.components.options import Options
from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.costs import floats_in
from raylfl.core.draws import Law
from raylfl.core.keyed import keyed_words
from raylfl.core.pattern import ExchangePattern, Star
from raylfl.core.population import Population, Round, SystemInfo
from raylfl.core.reduce import column
from raylfl.errors import did_you_mean

State = dict[str, Tensor]  # of clients, broadcasts or uploads: name -> tensor [d] or [C, d]
ServerState = dict[str, Any]  # Tensors, Tables and [N] vectors
Info = dict[str, float]  # name -> value of the metric algo/<name>; no computation uses it


@dataclass(frozen=True)
class Work:
    """The local work of C clients in one round; the arrays are float64 [C].

    steps: the number of local steps K_i of each client. a_norm: |a_i|_1, the norm of the client's accumulation vector
    (`raylfl.core.local_rule.a_vector`). relative_weight: N w_i, the client's importance weight times the number of
    clients of the run (exactly 1 for uniform weights). lr: the local learning rate eta. seed, round, clients: the run's
    seed, the round r and the clients' numbers [C] (None: 0 to C - 1); `uniform` depends on these three.
    """

    steps: Floats
    a_norm: Floats
    relative_weight: Floats
    lr: float
    seed: int = 0
    round: int = 0
    clients: Ints | None = None

    def per_step(self, like: Tensor) -> Tensor:
        """The factors 1 / (|a_i|_1 eta) as a column [C, 1]; 1 / eta if K_i = 0.

        A client's factor times its update U_i = eta G_i a_i is the mean of its K_i gradients with weights a_i. For SGD
        without momentum |a_i|_1 eta is the sum of the learning rates of its steps: K_i eta if they do not change within
        the round. like: a tensor with the dtype and device of the column.
        """
        return column(1.0 / (np.maximum(self.a_norm, 1.0) * self.lr), like)

    def uniform(self, like: Tensor, lane: int = 0) -> Tensor:
        """Uniform random numbers in [0, 1), multiples of 2^-24, in the shape [C, ...], dtype and device of `like`.

        A row is a function of (seed, round, client, lane): it depends neither on the other clients nor on workers, and
        is the same after a resume. lane: the number (0, 1, ...) of an independent draw in the same round.
        """
        clients = np.arange(len(self.steps)) if self.clients is None else self.clients
        words = keyed_words(self.seed, "algorithm", self.round, clients[:, None], lane, np.arange(like[0].numel()))
        return torch.from_numpy((words >> 40) * 2.0**-24).to(like).view(like.shape)


class Algorithm(Options, ABC):
    """A federated optimisation method: client computations, a server step, and class attributes with its properties.

    Each subclass is a dataclass in its own file and follows one paper.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Warns of names that look like a misspelt method or trait."""
        super().__init_subclass__(**options)
        hooks = [name for name in vars(Algorithm) if not name.startswith("_")]
        for name in vars(cls):
            hint = did_you_mean(name, hooks, cutoff=0.86)
            if hint and not any(hasattr(base, name) for base in cls.__bases__):
                text = f"{cls.__name__}.{name} is no method or trait of Algorithm, and is never used by it"
                warnings.warn(f"{text}; {hint}", UserWarning, stacklevel=3)

    pattern: ClassVar[ExchangePattern] = Star()
    """The exchange of models: `Star` (clients in parallel), `Ring` or `Relay` (in sequence), `Alone` (one client with
    all data) or `Peers` (no server: nodes average their parameters with their neighbours' in a graph)."""
    own_step: ClassVar[bool] = False
    """Whether the paper defines the local step; the options `local.momentum`, `local.optimizer` and
    `local.optimizer_state` then do not apply."""
    uploads_update: ClassVar[bool] = True
    """Whether uploads["update"] is U_i = x_start - x_{i,K}, the starting point minus the final local parameters;
    update norms and gradient diversity are then measured."""
    assumes_full: ClassVar[bool] = False
    """Whether the method assumes full participation and no lost uploads; other runs warn."""
    assumes_equal_steps: ClassVar[bool] = False
    """Whether the method assumes equal numbers of local steps at all clients; other runs warn."""
    weighs_by_work: ClassVar[bool] = False
    """Whether the method weighs updates or clients by |a_i|_1 (`Work.a_norm`), which is defined for SGD only."""
    one_step: ClassVar[bool] = False
    """Whether every client takes one local step; `local.steps` and `local.epochs` then do not apply."""
    keeps_memory: ClassVar[bool] = False
    """Whether the server keeps a vector [d] for every client whose upload it has ever received."""
    server_known: ClassVar[tuple[str, ...]] = ()
    """Names of uploads that the server could compute itself; they are not counted as traffic."""
    calibrate: bool = False
    """Whether the local learning rate is calibrated by |a_i|_1 (FedACS, app. I.2); an option of some methods."""
    cut: str | None = None
    """The layer after which the model is split; the two halves exchange activations and gradients in every local step.
    None: the model is not split."""

    @property
    def proximal(self) -> float:
        """The factor mu of a proximal term mu/2 |x - x_r|^2 in the local objectives; 0: no such term.

        x_r is the broadcast model. The accumulation vectors (`raylfl.core.local_rule.a_vector`) depend on mu.
        """
        return 0.0

    @property
    def full_gradient(self) -> bool:
        """Whether the method reads `full_gradient` [C, d] or `full_loss` [C, 1] in `carry`.

        These two tensors hold the gradient and the loss of each client over all its samples, at the client's starting
        point.
        """
        return False

    @property
    def samples_by_norm(self) -> bool:
        """Whether every available client trains and uploads the norm of its update before the server samples."""
        return False

    # -- state ---------------------------------------------------------------------------------------------

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        """The server state before round 0, whose entry "x" holds the model's parameters [d].

        x: the initial parameters [d]. population: the clients of the run.
        """
        return {"x": x.clone()}

    def init_clients(self, x: Tensor, count: int) -> State:
        """The states of `count` clients before their first round: name -> rows [count, d].

        The dict is empty if the method keeps no client states. x: the initial parameters [d].
        """
        return {}

    def node_parameters(self, server: ServerState) -> Tensor | None:
        """The parameters [N, d] of all N nodes of a method without a server; None for methods with a server."""
        return None

    # -- clients: rows are clients, [C, d] -------------------------------------------------------------------

    def broadcast(self, server: ServerState) -> State:
        """The vectors that the server sends to every client of the cohort, by name; their floats count as downlink."""
        return {"x": server["x"]}

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        """The starting point of the local steps: [d] (the same for all clients) or [C, d]."""
        return broadcast["x"]

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        """`carry` before the first local step, the values that pass from step to step: name -> rows [C, d].

        Each local step receives `carry` and returns the next one (`direction`). A tensor [1, d] stands for C equal
        rows. The local solver adds the starting points as carry["x_start"]. Never overwrite this tensor: it may share
        memory with the broadcast.
        """
        return {}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        """(direction v [C, d] of the local step x <- x - eta v, next carry).

        x: the parameters [C, d]; never overwrite them. g: the gradients [C, d] after clipping and weight decay;
        `direction` may keep or overwrite them. A tensor of `carry` may be overwritten only if `start` or an earlier
        local step has created it.
        """
        return g, carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        """(uploads, new client states) after the last local step, each name -> rows [C, ...].

        x: the parameters [C, d] after that step. The new states have the names of `init_clients`. Default: the upload
        `update`, U_i = x_start - x, and the old client states.
        """
        return {"update": carry["x_start"] - x}, dict(client_state)

    def sent_floats(self, uploads: State) -> int:
        """The number of floats in one client's upload that are counted as traffic.

        uploads: rows [C, ...] by name, C >= 1. Names in `server_known` are not counted.
        """
        return floats_in({name: rows[0] for name, rows in uploads.items() if name not in self.server_known})

    # -- server ------------------------------------------------------------------------------------------------

    @abstractmethod
    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        """Takes the server step of a round; returns (new server state, metrics to log).

        uploads: name -> rows of the received clients, of which there is at least one. r: the round restricted to the
        received clients (`Round.received_view`). Row k of the uploads is from client r.cohort[k].
        """

    def empty_round(self, server: ServerState, r: Round) -> ServerState:
        """The server state after a round without a received upload; only its counters of rounds may have changed."""
        return server

    def update_clients(self, server: ServerState, uploads: State, client_state: State, r: Round) -> State | None:
        """The received clients' states after the second broadcast; None for methods without a second broadcast.

        server: the state after the server step. uploads, client_state: the results of `finish`, one row per client of
        r.cohort. r: the round restricted to the received clients.
        """
        return None

    def second_broadcast(self, server: ServerState) -> State:
        """The vectors that the server sends to every received client after the server step, for `update_clients`.

        Their floats count as downlink.
        """
        return {}

    # -- sampling and diagnostics --------------------------------------------------------------------------------

    def full_participation(self, server: ServerState, r: int) -> bool:
        """Whether the method itself samples all N clients in round r, for example in an initial full round."""
        return False

    def draw_local_steps(self, rng: np.random.Generator) -> int | None:
        """The number K of local steps of all clients with data, if the method draws it; None: the config sets it.

        rng: the random generator of the round.
        """
        return None

    def probabilities(self, server: ServerState, c: SystemInfo) -> Floats | None:
        """Sampling probabilities [N] of all clients, if the method draws c.size clients with replacement; else None.

        c: the system state before the round. `normalised_over` turns scores into probabilities that are 0 for
        unavailable clients.
        """
        return None

    def norm_probabilities(self, server: ServerState, c: SystemInfo, norms: Floats) -> Floats:
        """Sampling probabilities [N] of all clients, for a method with `samples_by_norm`.

        c: the system state before the round. norms: the norm of each client's update in this round [N], nan for
        unavailable clients. Raises NotImplementedError for other methods.
        """
        raise NotImplementedError(f"{type(self).__name__} does not sample by norms")

    def expected_coefficients(
        self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement"
    ) -> Floats | None:
        """Expected aggregation coefficients [N] of all clients, up to a common factor; None without a closed form.

        A client's coefficient is the factor of its update in the server step, and 0 if its upload is not received.
        c: the system state before the round. marginals: E[s_i], [N], where s_i is the number of times that client i is
        drawn. law: the law of the draws s_i (`raylfl.core.draws.Law`); None: unknown. The result does not depend on the
        round's number or learning rate, c.index and c.lr: it is computed again only if another argument changes.

        The products of these coefficients and |a_i|_1, the norms of the accumulation vectors, are proportional to the
        weights Omega_i of the surrogate objective sum_i Omega_i f_i that the method minimises (FedACS, eq. (6)).
        """
        return None

    def step_length(self, c: SystemInfo) -> float:
        """The local learning rate eta of this round; default: the configured c.lr.

        Methods with the option `calibrate` rescale it (FedACS, app. I.2). c: the system state before the round.
        """
        return c.lr


def overrides(algorithm: Algorithm, method: str) -> bool:
    """Whether the algorithm's class overrides this method of `Algorithm`."""
    return getattr(algorithm.__class__, method) is not getattr(Algorithm, method)


def normalise(weights: Floats) -> Floats:
    """Weights >= 0 [C] divided by their sum; 1 / C each if the sum is 0.

    >>> normalise(np.array([1.0, 3.0])).tolist(), normalise(np.zeros(2)).tolist()
    ([0.25, 0.75], [0.5, 0.5])
    """
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def normalised_over(scores: Floats, available: Bools) -> Floats:
    """Probabilities p [N] proportional to the scores >= 0 [N] of the available clients; all 0 if their sum is 0.

    available: a mask, bool [N].

    >>> normalised_over(np.array([1.0, 1.0, 2.0]), np.array([True, False, True])).round(3).tolist()
    [0.333, 0.0, 0.667]
    """
    p = np.where(available, scores, 0.0)
    total = p.sum()
    return p / total if total > 0 else p
