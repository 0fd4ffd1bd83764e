"""The common part of methods without a server.

Node i holds its own rows between rounds, x_i [d] and the rows that its method adds, and exchanges rows with its
neighbours in the graph (`topology`). A method defines four things: the rows of a node before round 0, the local half
of a round (like any algorithm), the messages of a node to its neighbours, and a node's new rows from the messages that
arrive, mixed by the matrices of the method's family.

State    server: the rows of all nodes, node_x [N, d] and so on, and x [d] = (1/N) sum_i x_i for reports: no step of a
         method reads it. A node that does not work in a round keeps its rows.
Sent     rows between neighbours (`cost/peer_floats`), nothing to or from a server.
Assumes  what the method assumes of its matrices (`raylfl.core.mixing`); with importance weights w the gradient of
         client i is multiplied by N w_i.

Rows are kept in blocks of nodes, on Ray each block at a worker (`raylfl.runtime.round.homes`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.costs import floats_in
from raylfl.core.mixing import Edges, Family, Mixing, Part, matrices
from raylfl.core.population import Population, Round
from raylfl.core.reduce import column
from raylfl.core.topology import Peers, Topology

NODE = "node_"  # prefix of the names of the nodes' rows in the server state
SPECTRUM = 64  # largest number of working nodes for which the spectral gap of a round is measured


@dataclass
class GraphAlgorithm(Algorithm):
    """A method without a server."""

    topology: ClassVar[Topology] = Peers()
    uploads_update: ClassVar[bool] = False
    family: ClassVar[Family] = "doubly"
    """The matrices that the method mixes with: `doubly` stochastic, `column` stochastic, or a `pair` (R, C)."""
    biased_by_rows: ClassVar[bool] = False
    """Whether the mixing weights may be row-stochastic instead of doubly stochastic, which changes the objective."""
    tracked: ClassVar[str | None] = None
    """The row that tracks the mean of a quantity over all nodes (metric `algo/tracking_error`); None: no such row."""
    changed_in_steps: ClassVar[tuple[str, ...]] = ()
    """Rows that local steps change in place; `start` copies them."""

    @abstractmethod
    def init_nodes(self, x: Tensor, count: int) -> State:
        """The rows of all N = count nodes before round 0, [N, ...] each; always holds x [N, d].

        x: the initial model [d].
        """

    @abstractmethod
    def messages(self, rows: State, before: State) -> State:
        """The messages of the C working nodes to their neighbours, [C, ...] each; a function of each node's own rows.

        rows: the nodes' rows after the local work; before: their rows at the start of the round.
        """

    @abstractmethod
    def combine(self, rows: State, before: State, mixed: State) -> State:
        """The new rows of the C working nodes, [C, ...] each, from their own rows and the mixed messages.

        rows, before: as of `messages`; mixed: the messages multiplied by their mixing matrices.
        """

    def matrix(self, message: str, parts: Sequence[Part]) -> Part:
        """The matrix that mixes this message; parts: the matrices of the method's family; default: the first."""
        return parts[0]

    @property
    def exchanges_first(self) -> bool:
        """Whether nodes exchange messages before the local work of a round instead of after it."""
        return False

    def parameters(self, rows: State) -> Tensor:
        """The parameters of each node's model, [N, d], computed from its rows; default: the row x."""
        return rows["x"]

    # -- the contract of an algorithm ----------------------------------------------------------------------------

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        rows = self.init_nodes(x, population.count)
        return {"x": x.clone(), **{NODE + name: row.contiguous() for name, row in rows.items()}}

    def broadcast(self, server: ServerState) -> State:
        return {}

    def node_parameters(self, server: ServerState) -> Tensor | None:
        return self.parameters(_rows(server))

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        return client_state["x"]

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        copied = self.changed_in_steps
        carry = {k: rows.clone() if k in copied else rows for k, rows in client_state.items() if k != "x"}
        if (work.relative_weight != 1.0).any():
            carry["scale"] = column(work.relative_weight, client_state["x"])
        return carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x}, {}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        raise AssertionError("there is no server: raylfl.runtime.round.homes mixes the rows where they lie")

    def sent_floats(self, uploads: State) -> int:
        """The number of floats in a node's messages along one edge; uploads: the nodes' rows after the local work."""
        one = {name: rows[:1] for name, rows in uploads.items()}
        before = self.init_nodes(one["x"][0], 1)
        return floats_in(self.messages({**before, **one}, before))

    def mixings(self, r: Round) -> Sequence[Mixing]:
        """The mixing matrices of the round for its working nodes; on the complete graph if the round has no graph."""
        edges = Edges.complete(r.population.count) if r.edges is None else r.edges
        return matrices(edges, r.cohort, self.family)


class Tracking(GraphAlgorithm):
    """Gradient tracking: y_i <- y_i + g_i - g_prev_i follows the mean gradient, and a local step goes along y_i."""

    own_step: ClassVar[bool] = True
    tracked: ClassVar[str | None] = "y"
    changed_in_steps: ClassVar[tuple[str, ...]] = ("y",)

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1), **tracking_rows(x, count)}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        carry = tracking(g, carry)
        return carry["y"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x, "y": carry["y"], "g_prev": carry["g_prev"]}, {}


def tracking_rows(x: Tensor, count: int) -> State:
    """The rows y and g_prev [N, d] of N = count nodes before round 0: all 0."""
    zeros = x.new_zeros(count, x.numel())
    return {"y": zeros, "g_prev": zeros.clone()}


def tracking(g: Tensor, carry: State) -> State:
    """The rows of local work, `carry`, after a gradient g: y <- y + g - g_prev, in place, and g_prev <- g."""
    g = weighted(g, carry)
    return {**carry, "y": carry["y"].add_(g).sub_(carry["g_prev"]), "g_prev": g}


def weighted(g: Tensor, carry: State) -> Tensor:
    """The gradients g times N w_i, which `carry` holds as `scale`; unchanged for uniform weights."""
    return g * carry["scale"] if "scale" in carry else g


def _rows(server: ServerState) -> State:
    return {name.removeprefix(NODE): rows for name, rows in server.items() if name.startswith(NODE)}
