"""Local optimizers whose moments last longer than a round, and DiLoCo: numpy, one client after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Gradient = Callable[[int, Array], Array]  # (client, x) -> grad f_i(x)


@dataclass(frozen=True)
class Inner:
    """A local optimizer: AdamW (Loshchilov & Hutter 2019, Alg. 2), or the heavy ball b <- rho b + g, x <- x - eta b."""

    lr: float
    momentum: float = 0.0
    adamw: bool = False
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0

    def fresh(self, dim: int) -> dict[str, Any]:
        return {"m": np.zeros(dim), "s": np.zeros(dim), "n": 0.0}

    def step(self, x: Array, g: Array, now: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
        if not self.adamw:
            m = self.momentum * now["m"] + g
            return x - self.lr * m, {**now, "m": m}
        n = now["n"] + 1
        m = self.b1 * now["m"] + (1 - self.b1) * g
        s = self.b2 * now["s"] + (1 - self.b2) * g * g
        m_hat, s_hat = m / (1 - self.b1**n), s / (1 - self.b2**n)
        x = x - self.lr * (m_hat / (np.sqrt(s_hat) + self.eps) + self.decay * x)
        return x, {"m": m, "s": s, "n": n}


def federated(
    gradient: Gradient,
    x: Array,
    rounds: Sequence[dict[str, Any]],
    inner: Inner,
    state: str,
    weights: Array,
    ring: bool = False,
) -> Iterator[Array]:
    """x after each round of FedAvg (mean) or of a ring; rounds: rows of participation.jsonl.

    state: fresh; kept by a client whose upload arrives; or averaged over the clients whose uploads arrive and that
    took a step, with weights w_i. In a ring averaged moments go with the model.
    """
    own: dict[int, dict[str, Any]] = {}
    common = inner.fresh(len(x))
    for row in rounds:
        start, arrived = x, []
        for i, here, steps in zip(row["cohort"], row["received"], row["steps"], strict=True):
            at = start.copy()
            now = {"fresh": inner.fresh(len(x)), "kept": own.get(i, inner.fresh(len(x))), "averaged": common}[state]
            for _ in range(steps):
                at, now = inner.step(at, gradient(i, at), now)
            if here:
                own[i] = now
                arrived.append((i, steps, at, now))
                if ring:
                    start, common = at, now
        if ring:
            x = start
        elif arrived:
            x = np.mean([at for _, _, at, _ in arrived], axis=0)
            worked = [(weights[i], now) for i, steps, _, now in arrived if steps]
            total = sum(w for w, _ in worked)
            if worked:
                common = {k: sum(w * now[k] for w, now in worked) / total for k in common}
        yield x


def diloco(gradient: Gradient, theta: Array, workers: int, outer_steps: int, inner_steps: int, inner: Inner) -> Array:
    """DiLoCo (Douillard et al., arXiv 2311.08105), Alg. 1: theta(T).

    InnerOpt is AdamW, whose state each worker keeps; OuterOpt is Nesterov momentum in the form of torch.optim.SGD,
    with the paper's 0.7 and 0.9.
    """
    states = [inner.fresh(len(theta)) for _ in range(workers)]
    v = np.zeros_like(theta)
    for _ in range(outer_steps):  # line 1
        ends = []
        for i in range(workers):  # line 2
            theta_i = theta.copy()  # line 3
            for _ in range(inner_steps):  # lines 4-8
                theta_i, states[i] = inner.step(theta_i, gradient(i, theta_i), states[i])
            ends.append(theta_i)
        delta = np.mean([theta - theta_i for theta_i in ends], axis=0)  # line 11
        v = 0.9 * v + delta
        theta = theta - 0.7 * (delta + 0.9 * v)  # line 13
    return theta
