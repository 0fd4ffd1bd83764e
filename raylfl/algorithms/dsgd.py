"""DSGD: local steps and averages over neighbours, the decentralised FedAvg.

Nedic & Ozdaglar, IEEE TAC 2009 (`dgd`); Cattivelli & Sayed, IEEE TSP 2010 (diffusion: `atc`, `cta`); Lian et al.,
NeurIPS 2017.

State    node x_i [d].
Sent     d floats along each edge (x).
Assumes  W doubly stochastic. The limit has an error of the order of eta, from the heterogeneity of the clients.

    atc      x <- W (x - U(x))          adapt, then combine; U_i(x_i): K_i steps of x <- x - eta grad f_i(x) from x_i
    cta      x <- W x - U(W x)          combine, then adapt: the same sequence, shifted by half a round
    dgd      x <- W x - U(x)            both at once
    always   the mean of x moves by the mean of U
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm, weighted
from raylfl.core.algorithm import State
from raylfl.core.mixing import Mixing
from raylfl.core.population import Round


@ALGORITHMS.register("dsgd", paper="Lian et al. 2017")
@dataclass
class DSGD(GraphAlgorithm):
    """DSGD: local steps, then an average over the neighbours."""

    order: Literal["atc", "cta", "dgd"] = "atc"  # adapt then combine, combine then adapt, or both at once

    biased_by_rows: ClassVar[bool] = True

    def init_nodes(self, x: Tensor, count: int) -> State:
        return {"x": x.repeat(count, 1)}

    def local_rows(self, rows: State, mixings: Sequence[Mixing]) -> State:
        return {"x": mixings[0](rows["x"])} if self.order == "cta" else rows

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        return weighted(g, carry), carry

    def mix(self, rows: State, before: State, mixings: Sequence[Mixing], r: Round) -> State:
        if self.order == "cta":
            return {"x": rows["x"]}
        w = mixings[0]
        if self.order == "atc":
            return {"x": w(rows["x"])}
        return {"x": w(before["x"]) + (rows["x"] - before["x"])}
