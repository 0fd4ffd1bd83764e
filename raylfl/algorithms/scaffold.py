"""SCAFFOLD: control variates against client drift.

Karimireddy et al., ICML 2020, Alg. 1, eqs. (3)-(5). Symbols as in `raylfl.algorithms`.

State    server x, c [d], c = 0 at first; client c_i [d], its control variate, 0 at first.
Sent     2d floats down (x, c), 2d floats up (U_i, c_i+ - c_i), or d (`uplink`).
Assumes  nothing about participation; exact for full-batch gradients if every client is received infinitely often.

    client   x_i <- x_i - eta (grad f_i(x_i) - c_i + c), K_i times from x;  U_i = x - x_i
             option 1   c_i+ = grad f_i(x), over all of the client's data
             option 2   c_i+ = c_i - c + U_i / (K_i eta), the mean of its K_i gradients; with a schedule over the
                        local steps the divisor is the sum of their learning rates, and the mean has these as weights
    server   x <- x - gamma (1/|R|) sum_R U_i;  c <- c + (1/N) sum_R (c_i+ - c_i)
    always   c = (1/N) sum_i c_i

A client without data (K_i = 0) keeps its c_i.

`uplink: update` sends U_i alone, d floats. In option 2, c_i+ - c_i = U_i / (K_i eta) - c, which the server can compute
(Huang et al. 2024; FOCUS, table 1, footnote 6). Only the rounding differs.

Four differences of public code from the paper can be switched on. `momentum` applies to the raw gradient, before the
correction: m <- momentum m + grad f_i(x_i), x_i <- x_i - eta (m - c_i + c). Option 2 then stores about 1/(1-momentum)
times the mean gradient. `variates: model` starts c and every c_i at the initial model instead of 0. `divisor: 10`
divides the sum of the updates by 10 instead of |R|, as the public code of FOCUS does. `variate_divisor: received`
divides the sum of the changes of c_i by |R| instead of N, as NIID-Bench's code does. If every round receives |R|
clients, c is then (N/|R|) mean_i c_i - (N/|R| - 1) c_0, where c_0 are the first variates. With c_0 = 0 the method stays
exact; with `variates: model`, its fixed point has grad F = (1 - |R|/N) x_0.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.components.options import Doc, Ge, Gt, Kind, Lt
from raylfl.core.algorithm import Info, ServerState, State, Work
from raylfl.core.chunked_matrix import elementwise
from raylfl.core.population import Population, Round
from raylfl.core.reduce import column
from raylfl.core.summing import Coefficients, Summing
from raylfl.errors import BadValue


@ALGORITHMS.register("scaffold", paper="Karimireddy et al. 2020")
@dataclass
class Scaffold(Summing):
    """SCAFFOLD: local gradients corrected by control variates, which remove the error of client drift."""

    gamma: float = 1.0  # server lr
    # Alg. 1, line 12: 1 (or I), an extra full-batch gradient; 2 (or II), the local steps
    option: Annotated[Any, Kind("1, 2, I or II")] = 2

    momentum: Annotated[
        float, Ge(0), Lt(1), Doc("the momentum of the raw gradient, before the correction; 0 in the paper")
    ] = 0.0
    variates: Literal["zero", "model"] = "zero"  # c and c_i at first: 0, or the initial model as in NIID-Bench's code
    divisor: Annotated[
        float | None,
        Gt(0),
        Doc("the divisor of the sum of the updates; null: the number of received clients; 10 in FOCUS's public code"),
    ] = None

    variate_divisor: Annotated[
        Literal["clients", "received"],
        Doc("the divisor of the sum of changes of c_i; clients: N; received: their number, as in NIID-Bench's code"),
    ] = "clients"

    uplink: Literal["both", "update"] = "both"  # both: U_i and the change of c_i; update: U_i only, with option 2

    own_step: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.option = {"I": 1, "II": 2}.get(str(self.option), self.option)
        if self.option not in (1, 2):
            raise BadValue("option", got=self.option, need="1 or 2 (I or II), as in Alg. 1, line 12")
        if self.uplink == "update" and self.option == 1:
            raise BadValue("uplink", got="update", need="both with option 1, whose c_i+ does not follow from U_i")

    @property
    def full_gradient(self) -> bool:
        return bool(self.option == 1)

    def init_server(self, x: Tensor, population: Population) -> ServerState:
        return {"x": x.clone(), "c": x.clone() if self.variates == "model" else torch.zeros_like(x)}

    def init_clients(self, x: Tensor, count: int) -> State:
        return {"variate": x.repeat(count, 1) if self.variates == "model" else x.new_zeros(count, x.numel())}

    def broadcast(self, server: ServerState) -> State:
        return {"x": server["x"], "c": server["c"]}

    def start(self, broadcast: State, client_state: State, work: Work) -> State:
        correction = broadcast["c"] - client_state["variate"]
        return {"correction": correction} | ({"buffer": torch.zeros_like(correction)} if self.momentum else {})

    def direction(self, x: Tensor, g: Tensor, carry: State) -> tuple[Tensor, State]:
        if self.momentum:
            carry = carry | {"buffer": self.momentum * carry["buffer"] + g}
            g = carry["buffer"]
        return g + carry["correction"], carry

    def finish(self, x: Tensor, carry: State, client_state: State, work: Work) -> tuple[State, State]:
        update = carry["x_start"] - x
        renewed = carry["full_gradient"] if self.option == 1 else update * work.per_step(x) - carry["correction"]
        if (work.steps == 0).any():
            renewed = torch.where(column(work.steps, x) > 0, renewed, client_state["variate"])
        if self.uplink == "update":
            return {"update": update}, {"variate": renewed}
        return {"update": update, "variate": renewed - client_state["variate"]}, {"variate": renewed}

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        if self.uplink == "update":  # a client without a step keeps its variate
            return {"update": 1.0, "variate": ("update", (r.steps > 0) / (np.maximum(r.a_norm, 1.0) * r.lr))}
        return {"update": 1.0, "variate": 1.0}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        received, active = len(r.cohort), int(np.count_nonzero(r.steps))
        count = received if self.variate_divisor == "received" else r.population.count

        def step(x: Tensor, c: Tensor, update: Tensor, changes: Tensor) -> tuple[Tensor, Tensor]:
            if self.uplink == "update":
                changes = changes - active * c
            return x - self.gamma / (self.divisor or received) * update, c + changes / count

        x, c = elementwise(step, server["x"], server["c"], sums["update"], sums["variate"])
        return {"x": x, "c": c}, {"c_norm": float(c.norm())}
