"""DSGD: local steps and averages over neighbours, the decentralised FedAvg.

Nedic & Ozdaglar, IEEE TAC 2009 (`dgd`); Cattivelli & Sayed, IEEE TSP 2010 (diffusion: `atc`, `cta`); Lian et al.,
NeurIPS 2017. Symbols as in `raylfl.algorithms`.

State    node x_i [d].
Sent     d floats along each edge (x).
Assumes  mixing matrix W doubly stochastic. The limit has an error of the order of eta, from the heterogeneity of the
         clients.

    U_i(x_i) is the update, start minus result, of K_i local steps x_i <- x_i - eta grad f_i(x_i) from x_i.

    atc      x <- W (x - U(x))          adapt, then combine
    cta      x <- W x - U(W x)          combine, then adapt: the same sequence, shifted by half a round
    dgd      x <- W x - U(x)            both at once
    always   the mean of the new x is the mean of the old x minus the mean of U
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm, weight_gradients
from raylfl.components.options import Doc, Ge, Lt
from raylfl.core.algorithm import State, Work


@ALGORITHMS.register("dsgd", paper="Lian et al. 2017")
@dataclass
class DSGD(GraphAlgorithm):
    """DSGD: local steps at each node, and a weighted average over its neighbours."""

    order: Literal["atc", "cta", "dgd"] = "atc"  # adapt then combine, combine then adapt, or both at once

    biased_by_rows: ClassVar[bool] = True

    @property
    def exchanges_first(self) -> bool:
        return self.order == "cta"

    def messages(self, rows: State, before: State) -> State:
        return {"x": before["x"] if self.order == "dgd" else rows["x"]}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {"x": mixed["x"] + (rows["x"] - before["x"])} if self.order == "dgd" else mixed


@ALGORITHMS.register("dsgdm", paper="Yuan et al. 2021")
@dataclass
class DSGDm(GraphAlgorithm):
    """DSGD with momentum: each node keeps its own momentum.

    DmSGD of Yuan et al., ICCV 2021. Alg. 2 of Yu, Jin & Yang, ICML 2019, mixes the momenta, too.

    State    node x_i and its momentum m_i [d], m = 0 at first.
    Sent     d floats along each edge (x).
    Assumes  mixing matrix W doubly stochastic. The error of the limit is that of DSGD with step eta / (1 - beta), or
             larger.

        local    m_i <- beta m_i + grad f_i(x_i);  x_i <- x_i - eta m_i, K_i times
        mixing   x <- W x
    """

    beta: Annotated[float, Ge(0), Lt(1), Doc("the decay of the momentum")] = 0.9

    own_step: ClassVar[bool] = True
    biased_by_rows: ClassVar[bool] = True
    zeros: ClassVar[tuple[str, ...]] = ("m",)

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        m = (self.beta * carry["m"]).add_(weight_gradients(g, carry))
        return m, {**carry, "m": m}

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x, "m": carry["m"]}, {}

    def combine(self, rows: State, before: State, mixed: State) -> State:
        return {**mixed, "m": rows["m"]}
