"""Options of the local solver, and the accumulation vectors a_i that they imply."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from raylfl.components.options import Doc, Ge, Gt, Le, Lt, Options, UsedWith
from raylfl.core.arrays import Floats


@dataclass
class Schedule(Options):
    """Local learning rates that fall over the rounds, or over the local steps of each round.

    The factor on eta in round r is 1 (constant), decay^r (exponential) or 1/sqrt(1 + r/period) (sqrt). The `step_`
    variants apply the same factors to local step t in place of r, and start again from eta in every round (FedACS,
    fig. 4 uses step_exponential).

    >>> [Schedule("exponential", decay=0.5).over_rounds(r) for r in range(3)]
    [1.0, 0.5, 0.25]
    >>> [Schedule("step_sqrt", period=1.0).over_steps(t) for t in (0, 3)]
    [1.0, 0.5]
    """

    name: Annotated[
        Literal["constant", "exponential", "sqrt", "step_exponential", "step_sqrt"],
        Doc(
            "`exponential` is `eta decay^r`; `sqrt` is `eta / sqrt(1 + r/period)`; `step_exponential` and `step_sqrt` "
            "do the same over the local steps, and start again from eta in each round"
        ),
    ] = "constant"
    decay: Annotated[
        float,
        Gt(0),
        Le(1),
        Doc("the factor per round (or step)"),
        UsedWith("name", ("exponential", "step_exponential")),
    ] = 1.0
    period: Annotated[float, Gt(0), Doc("the period in rounds (or steps)"), UsedWith("name", ("sqrt", "step_sqrt"))] = (
        1.0
    )

    def over_rounds(self, r: int) -> float:
        """The factor eta_r / eta_0 on the local learning rate in round r."""
        return 1.0 if self.name.startswith("step_") else self._factor(r)

    def over_steps(self, t: int) -> float:
        """The factor eta_t / eta on the local learning rate in local step t."""
        return self._factor(t) if self.name.startswith("step_") else 1.0

    def _factor(self, k: int) -> float:
        if self.name.endswith("exponential"):
            return self.decay**k
        if self.name.endswith("sqrt"):
            return 1.0 / math.sqrt(1.0 + k / self.period)
        return 1.0


@dataclass
class LocalRule(Options):
    """Options of the local solver: learning rate, schedule, momentum, weight decay and clipping.

    A local step of the optimizer `sgd` computes, in this order: g <- g * min(1, clip_norm / (|g| + 1e-6));
    g <- g + weight_decay * x; the algorithm's direction v; buffer <- momentum * buffer + v; x <- x - eta_t * buffer.
    The buffer is 0 at the start of a round, unless `local.optimizer_state` keeps or averages it.
    """

    lr: Annotated[float, Gt(0), Doc("the local learning rate eta")] = 0.1
    lr_schedule: Schedule = field(default_factory=Schedule)
    momentum: Annotated[
        float, Ge(0), Lt(1), Doc("the momentum of the local solver; optimizer_state says how its buffer starts")
    ] = 0.0
    weight_decay: Annotated[float, Ge(0), Doc("adds `weight_decay * x` to the gradient")] = 0.0
    clip_norm: Annotated[
        float | None, Gt(0), Doc("the largest norm of a gradient; longer ones are scaled down, before weight decay")
    ] = None


def a_vector(steps: int, rule: LocalRule, lr: float, proximal: float = 0.0) -> Floats:
    """The accumulation vector a_i [K], the weights of the K gradients G_i [d, K] in the update U_i = eta G_i a_i.

    steps: K. lr: eta. proximal: mu. Entry t = 0..K-1 is 1 for plain SGD, (1 - rho^{K-t})/(1 - rho) for momentum rho,
    (1 - eta mu)^{K-1-t} for a proximal term mu, and eta_t/eta for a step schedule with learning rate eta_t in step t.
    The code covers all combinations: it runs the adjoint recursion of (momentum buffer, x) backwards from x_K, the
    parameters after K steps. Source: FedNova (Wang et al. 2020, sec. 3); FedACS, sec. 2.

    >>> a_vector(3, LocalRule(momentum=0.5), lr=0.1).tolist()
    [1.75, 1.5, 1.0]
    """
    a = np.empty(steps)
    on_x, on_buffer = 1.0, 0.0  # d(-x_K) / d(-x_{t+1}) and d(-x_K) / d buffer_t / eta, from the last step back
    for t in range(steps - 1, -1, -1):
        on_buffer = rule.momentum * on_buffer + rule.lr_schedule.over_steps(t) * on_x
        a[t] = on_buffer
        on_x -= lr * proximal * on_buffer
    return a


def a_norm(steps: Sequence[int] | np.ndarray, rule: LocalRule, lr: float, proximal: float = 0.0) -> Floats:
    """Norms |a_i|_1 of the accumulation vectors for these numbers of steps K_i, float64 [C]; K_i itself for plain SGD.

    lr: the local learning rate eta. proximal: the factor mu of the proximal term.

    >>> a_norm([1, 3], LocalRule(momentum=0.5), lr=0.1).tolist()
    [1.0, 4.25]
    """
    counts = np.asarray(steps, dtype=np.int64)
    if rule.momentum == 0 and proximal == 0 and rule.lr_schedule.over_steps(1) == 1.0:
        return counts.astype(np.float64)
    distinct, inverse = np.unique(counts, return_inverse=True)
    return np.array([np.abs(a_vector(k, rule, lr, proximal)).sum() for k in distinct.tolist()])[inverse]
