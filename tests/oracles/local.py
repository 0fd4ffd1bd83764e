"""The local solver, step by step, and its accumulation vectors a_i."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.oracles.problem import Array, Problem
from tests.oracles.rounds import Round

Direction = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Local:
    """Options of the local solver.

    momentum: rho of the heavy ball; its buffer starts at 0 every round. weight_decay: adds weight_decay * x.
    clip_norm: c; the stochastic gradient is scaled by min(1, c/(norm + 1e-6)) before weight decay; None:
    never. schedule: eta_t = eta * schedule(t), schedule(0) = 1; None: constant.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: Callable[[int], float] | None = None

    def condition(self, g: Array, x: Array) -> Array:
        """Clips the stochastic gradient g, then adds weight decay at x."""
        if self.clip_norm is not None:
            g = g * min(1.0, self.clip_norm / (float(np.linalg.norm(g)) + 1e-6))
        return g + self.weight_decay * x

    def rate(self, eta: float, t: int) -> float:
        """eta_t of local step t."""
        return eta if self.schedule is None else eta * self.schedule(t)


PLAIN = Local()


class Run(NamedTuple):
    """A problem, its rounds, the initial model x0 [d], and the options of the local solver."""

    problem: Problem
    rounds: Sequence[Round]
    x0: Array
    local: Local = PLAIN


def local_model(
    problem: Problem, i: int, start: Array, r: Round, local: Local, direction: Direction | None = None
) -> Array:
    """x_{i,K_i} [d] from x_{i,0} = start.

    g = condition(grad f_i(x; xi_t)); d = direction(g, x), or g if None;
    buf <- rho buf + d; x <- x - eta_t buf.
    """
    x, buffer = start.copy(), np.zeros_like(start)
    for t in range(r.steps_of(i)):
        g = local.condition(problem.gradient(i, x, r.index, t), x)
        d = g if direction is None else direction(g, x)
        buffer = local.momentum * buffer + d
        x = x - local.rate(r.lr, t) * buffer
    return x


def updates(problem: Problem, r: Round, x: Array, local: Local) -> dict[int, Array]:
    """U_i = x_r - x_{i,K_i} of plain local SGD, for every received client."""
    return {i: x - local_model(problem, i, x, r, local) for i in r.arrived}


def a_vector(steps: int, momentum: float, schedule: Callable[[int], float] | None) -> Array:
    """a in R^K of U = eta G a (spec, notation; FedNova; [3] sec. 2), read off as an impulse response.

    The solver is linear in its gradients, so a_t is how far one unit gradient at step t alone moves x after
    all K steps, in units of eta_0. schedule: eta_t / eta_0. Closed forms: ones; (1 - rho^{K-t})/(1 - rho);
    eta_t/eta_0.
    """
    a = np.empty(steps)
    for impulse in range(steps):
        moved, buffer = 0.0, 0.0  # x_start - x, in units of eta_0
        for t in range(steps):
            buffer = momentum * buffer + float(t == impulse)
            moved += (1.0 if schedule is None else schedule(t)) * buffer
        a[impulse] = moved
    return a


def a_norms(r: Round, clients: int, local: Local) -> Array:
    """|a_i|_1 over all N [N] in round r."""
    vectors = [a_vector(r.steps_of(i), local.momentum, local.schedule) for i in range(clients)]
    return np.array([np.abs(a).sum() for a in vectors])
