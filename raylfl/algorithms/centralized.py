"""Centralised training: SGD on the union of all clients' data. A reference, not a federated method.

Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     nothing: the data are at the server.
Assumes  that data may be pooled; participation and links do not apply.

    server   x <- x - eta grad f(x), K times a round; f: mean loss over all samples, F with the weights n_i/n
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm, Info, ServerState, State, Work
from raylfl.core.pattern import Alone, ExchangePattern
from raylfl.core.population import Round


@ALGORITHMS.register("centralized")
@dataclass
class Centralized(Algorithm):
    """Centralised training: K SGD steps per round on the mean loss over the samples of all clients."""

    pattern: ClassVar[ExchangePattern] = Alone()
    uploads_update: ClassVar[bool] = False

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        return {"x": x}, {}

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        return {"x": uploads["x"][0]}, {}  # the upload of the one client, which owns all data
