"""DSGD with momentum: DSGD whose nodes keep a heavy-ball momentum from round to round.

DmSGD of Yuan et al., ICCV 2021. Alg. 2 of Yu, Jin & Yang, ICML 2019, mixes the momenta, too. Symbols as in
`raylfl.algorithms`.

State    node x_i and its momentum m_i [d], m = 0 at first.
Sent     d floats along each edge (x).
Assumes  mixing matrix W doubly stochastic. The error of the limit is that of DSGD with step eta / (1 - beta), or
         larger.

    local    m_i <- beta m_i + grad f_i(x_i);  x_i <- x_i - eta m_i, K_i times
    mixing   x <- W x
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm, weight_gradients
from raylfl.components.options import Doc, Ge, Lt
from raylfl.core.algorithm import State, Work


@ALGORITHMS.register("dsgdm", paper="Yuan et al. 2021")
@dataclass
class DSGDm(GraphAlgorithm):
    """DSGD with momentum: each node keeps its own momentum."""

    beta: Annotated[float, Ge(0), Lt(1), Doc("the decay of the momentum")] = 0.9

    own_step: ClassVar[bool] = True
    biased_by_rows: ClassVar[bool] = True

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1), "m": x.new_zeros(count, x.numel())}

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        m = (self.beta * carry["m"]).add_(weight_gradients(g, carry))
        return m, {**carry, "m": m}

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x, "m": carry["m"]}, {}

    def messages(self, rows: State, before: State) -> State:
        return {"x": rows["x"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {**mixed, "m": rows["m"]}
