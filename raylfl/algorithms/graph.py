"""The common part of methods without a server.

Between rounds, node i keeps vectors, its rows: its model x_i [d] and the vectors that its method adds. It exchanges
rows with its neighbours in the graph (config group `topology`). A method defines four things: the rows of a node before
round 0; the local steps of a round, as in any algorithm; the messages of a node to its neighbours; and a node's new
rows from the messages that arrive. These messages are mixed by matrices of the method's family (`raylfl.core.mixing`).

State    server: the rows of all nodes, node_x [N, d] and so on, and x [d] = (1/N) sum_i x_i for reports: no step of a
         method reads it. A node that does not work in a round keeps its rows.
Sent     rows between neighbours (`cost/peer_floats`), nothing to or from a server.
Assumes  mixing matrices whose rows or columns have the sums that the family prescribes. With importance weights w the
         gradient of client i is multiplied by N w_i.

The nodes are divided into blocks. Under Ray the rows of a block are on one worker (`raylfl.runtime.round.blocks`).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.costs import floats_in
from raylfl.core.mixing import Edges, Family, Mixing, matrices
from raylfl.core.mixing_rows import MixingRows
from raylfl.core.pattern import ExchangePattern, Peers
from raylfl.core.population import Population, Round
from raylfl.core.reduce import column

NODE = "node_"  # prefix of the names of the nodes' rows in the server state
SPECTRUM = 64  # largest number of working nodes for which the spectral gap of a round is measured


class GraphAlgorithm(Algorithm):
    """A method without a server: each node keeps a model and mixes it with the models of its neighbours."""

    pattern: ClassVar[ExchangePattern] = Peers()
    uploads_update: ClassVar[bool] = False
    family: ClassVar[Family] = "doubly"
    """The mixing matrices: `doubly` stochastic, `column` stochastic, or a `pair` of a row-stochastic matrix R and a
    column-stochastic matrix C."""
    biased_by_rows: ClassVar[bool] = False
    """Whether row-stochastic matrices are accepted in place of doubly stochastic ones; they change the objective."""
    tracked: ClassVar[str | None] = None
    """The name of the row that tracks the mean gradient over all nodes (metric `algo/tracking_error`); None: none."""
    lazy: bool = False
    """Whether messages are mixed by (I + W)/2 instead of W; an option of some methods."""
    zeros: ClassVar[tuple[str, ...]] = ()
    """Names of a node's rows [d] besides x that are 0 before round 0."""
    changed_in_steps: ClassVar[tuple[str, ...]] = ()
    """Names of the rows that local steps change in place; `start` copies these rows."""

    def init_nodes(self, x: Tensor, count: int) -> State:
        """The rows of all N = count nodes before round 0, by name: x [N, d], and the method's other rows [N, ...].

        x: the initial model [d]. Default: x at every node, and the rows `zeros`.
        """
        return {"x": x.repeat(count, 1), **{name: x.new_zeros(count, x.numel()) for name in self.zeros}}

    def messages(self, rows: State, before: State) -> State:
        """The messages of the C working nodes to their neighbours, [C, ...] each; a function of each node's own rows.

        rows: the nodes' rows after the local steps; before: their rows at the start of the round. Default: the x after
        the local steps.
        """
        return {"x": rows["x"]}

    @abstractmethod
    def combine(self, rows: State, before: State, mixed: State) -> State:
        """The new rows of the C working nodes, [C, ...] each, from their own rows and the mixed messages.

        rows, before: as in `messages`; mixed: for each node the weighted sum of its own message and of the messages
        that arrive at this node. The weights are those of the message's mixing matrix.
        """

    def matrix(self, message: str, parts: Sequence[MixingRows]) -> MixingRows:
        """The matrix that mixes the message of this name; default: the first of `parts`, W, or (I + W)/2 if `lazy`.

        parts: the matrices of the method's family, restricted to the matrix rows of some nodes.
        """
        return parts[0].lazy() if self.lazy else parts[0]

    @property
    def exchanges_first(self) -> bool:
        """Whether nodes exchange messages before the local steps of a round instead of after them."""
        return False

    def parameters(self, rows: State) -> Tensor:
        """The parameters [N, d] of the nodes' models, computed from the nodes' rows; default: the rows x."""
        return rows["x"]

    # -- the contract of an algorithm ----------------------------------------------------------------------------

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        rows = self.init_nodes(x, population.count)
        return {"x": x.clone(), **{NODE + name: row.contiguous() for name, row in rows.items()}}

    def broadcast(self, server: ServerState) -> State:
        return {}

    def node_parameters(self, server: ServerState) -> Tensor | None:
        return self.parameters({k.removeprefix(NODE): rows for k, rows in server.items() if k.startswith(NODE)})

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        return client_state["x"]

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        copied = self.changed_in_steps
        carry = {k: rows.clone() if k in copied else rows for k, rows in client_state.items() if k != "x"}
        return carry | relative_weights(work, client_state["x"])

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        return weight_gradients(g, carry), carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x}, {}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        raise AssertionError("there is no server: raylfl.runtime.round.blocks mixes the rows on their workers")

    def sent_floats(self, uploads: State) -> int:
        """The number of floats that a node sends along one edge; uploads: the nodes' rows after the local steps."""
        one = {name: rows[:1] for name, rows in uploads.items()}
        initial = self.init_nodes(one["x"][0], 1)
        return floats_in(self.messages({**initial, **one}, initial))

    def mixings(self, r: Round) -> Sequence[Mixing]:
        """The mixing matrices of the round's working nodes, on its graph; without a graph, on the complete graph."""
        edges = Edges.complete(r.population.count) if r.edges is None else r.edges
        return matrices(edges, r.cohort, self.family)


class Tracking(GraphAlgorithm):
    """Gradient tracking: node i steps along y_i, an estimate of the mean gradient of all nodes.

    y_i <- y_i + g_i - g_prev_i in each local step, with g_i and g_prev_i the node's gradient in this step and in the
    step before it.
    """

    own_step: ClassVar[bool] = True
    tracked: ClassVar[str | None] = "y"
    zeros: ClassVar[tuple[str, ...]] = ("y", "g_prev")
    changed_in_steps: ClassVar[tuple[str, ...]] = ("y",)

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        carry = tracking(g, carry)
        return carry["y"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x, "y": carry["y"], "g_prev": carry["g_prev"]}, {}


def relative_weights(work: Work, like: Tensor) -> State:
    """The factors N w_i of the gradients, as the column `scale` of `carry`; nothing for uniform weights.

    like: a tensor with the dtype and device of the column.
    """
    return {"scale": column(work.relative_weight, like)} if (work.relative_weight != 1.0).any() else {}


def tracking(g: Tensor, carry: State) -> State:
    """Updates `carry` of the local steps by gradients g [C, d]: y <- y + g - g_prev in place, then g_prev <- g.

    g is multiplied by N w_i first, as in `weight_gradients`.
    """
    g = weight_gradients(g, carry)
    return {**carry, "y": carry["y"].add_(g).sub_(carry["g_prev"]), "g_prev": g}


def weight_gradients(g: Tensor, carry: State) -> Tensor:
    """The gradients g [C, d] times N w_i, for N clients with importance weights w_i (`relative_weights`)."""
    return g * carry["scale"] if "scale" in carry else g
