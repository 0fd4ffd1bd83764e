"""Centralised training: what could be had if all data were in one place. A reference, not a federated method.

State    server x [d]; clients none.
Sent     nothing: the data is taken to be where the server is.
Assumes  that data may be pooled; participation and links do not matter.

    server   x <- x - eta grad F(x), K times a round
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.population import Round


@ALGORITHMS.register("centralized")
@dataclass
class Centralized(Algorithm):
    """Centralised: K steps a round on F itself, the data in one place."""

    pooled: ClassVar[bool] = True
    uploads_update: ClassVar[bool] = False

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x}, {}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        return {"x": uploads["x"][0]}, {}  # the imaginary client that owns everybody's data
