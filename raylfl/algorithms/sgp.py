"""SGP: stochastic gradient push, DSGD over directed graphs by push-sum.

Assran, Loizou, Ballas & Rabbat, ICML 2019, Alg. 1; Nedic & Olshevsky, IEEE TAC 2015. Symbols as in `raylfl.algorithms`.

State    node x_i [d] and its mass, the push-sum weight w_i, 1 at first; the model of node i is z_i = x_i / w_i.
Sent     d + 1 floats along each edge (x, w).
Assumes  mixing matrix C column-stochastic, which may change: a node divides its row among itself and the neighbours
         at which its message arrives. The error of the limit is that of DSGD.

    local    x_i <- x_i - eta grad f_i(z_i), K_i times
    mixing   x <- C x;  w <- C w
    always   sum_i w_i = N; the mean of the new x is the mean of the old x minus the mean update
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm, Tracking, tracking, weight_gradients
from raylfl.core.algorithm import State, Work
from raylfl.core.mixing import Family


@ALGORITHMS.register("sgp", paper="Assran et al. 2019")
@dataclass
class SGP(GraphAlgorithm):
    """SGP: DSGD over directed graphs; a node's model is its row divided by its push-sum weight."""

    own_step: ClassVar[bool] = True
    family: ClassVar[Family] = "column"

    def init_nodes(self, x: Tensor, count: int) -> State:
        rows = super().init_nodes(x, count)
        return {"x": rows["x"], "w": x.new_ones(count, 1), **rows}

    def parameters(self, rows: State) -> Tensor:
        return rows["x"] / rows["w"]

    def start_point(self, broadcast: State, client_state: State) -> Tensor:
        return self.parameters(client_state)

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        return weight_gradients(g, carry).div_(carry["w"]), carry  # a step of z_i = x_i / w_i

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x * carry["w"]}, {}

    def messages(self, rows: State, before: State) -> State:
        return {"x": rows["x"], "w": before["w"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return mixed


@ALGORITHMS.register("push_diging", paper="Nedic et al. 2017")
@dataclass
class PushDIGing(Tracking, SGP):
    """Push-DIGing: gradient tracking over directed graphs, by push-sum, with exact convergence.

    Nedic, Olshevsky & Shi, SIAM J. Optim. 2017, Alg. 2.

    State    node x_i (the paper's u_i), y_i, g_prev_i [d] and the node's mass, its push-sum weight w_i (the paper's
             v_i); the model of node i is z_i = x_i / w_i. At first w = 1 and y = g_prev = 0.
    Sent     2d + 1 floats along each edge (x, y, w).
    Assumes  mixing matrix C column-stochastic, which may change; one local step per round.

        local    g = grad f(z);  y <- y + g - g_prev;  g_prev <- g;  x <- x - eta y
        mixing   x <- C x;  w <- C w;  y <- C y
        always   sum_i y_i = sum_i g_prev_i (tracking); sum_i w_i = N (mass)
    """

    one_step: ClassVar[bool] = True

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        carry = tracking(g, carry)
        return carry["y"] / carry["w"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x * carry["w"], "y": carry["y"], "g_prev": carry["g_prev"]}, {}

    def messages(self, rows: State, before: State) -> State:
        return {**super().messages(rows, before), "y": rows["y"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {**mixed, "g_prev": rows["g_prev"]}
