"""Shortest combinations of vectors, exact by a primal active-set method; fedaware and fedmgda on top."""

import numpy as np

from tests.oracles.averaging import History, add_up, aggregate_of
from tests.oracles.local import Run, updates
from tests.oracles.problem import Array


def shortest_combination(vectors: Array, lower: Array, upper: Array, start: Array) -> Array:
    """argmin |sum lambda_i v_i|^2 over sum lambda = 1, lower <= lambda <= upper; lambda [n].

    vectors: [n, d]; start: feasible. Minimise on the face of the free coordinates, stop at the first bound
    met; at a face's minimum free the bound coordinate with the wrong multiplier (Nocedal & Wright, Alg.
    16.3). Optimal when no coordinate that may grow has a smaller gradient than one that may shrink.
    """
    lam = start.astype(float)
    free = (lam > lower) & (lam < upper)
    for _ in range(100 * (len(lam) + 1)):
        index = np.flatnonzero(free)
        if len(index) >= 2:
            edges = (vectors[index[1:]] - vectors[index[0]]).T  # moves that keep the sum
            rest = np.linalg.lstsq(edges, -vectors.T @ lam, rcond=None)[0]
            move = np.zeros_like(lam)
            move[index[1:]], move[index[0]] = rest, -rest.sum()
            room = np.full_like(lam, np.inf)
            room[move < 0] = (lower - lam)[move < 0] / move[move < 0]
            room[move > 0] = (upper - lam)[move > 0] / move[move > 0]
            blocker = int(np.argmin(room))
            lam = lam + min(1.0, room[blocker]) * move
            if room[blocker] < 1:
                lam[blocker] = lower[blocker] if move[blocker] < 0 else upper[blocker]
                free[blocker] = False
                continue
        slope = vectors @ (vectors.T @ lam)
        noise = 1e-13 * np.linalg.norm(vectors, axis=1).max() * np.linalg.norm(lam[:, None] * vectors, axis=1).max()
        grow = np.where(~free & (lam < upper), slope, np.inf)
        shrink = np.where(~free & (lam > lower), slope, -np.inf)
        if len(index):
            level = slope[index].mean()
            gains = np.maximum(level - grow, shrink - level)
            if gains.max() <= noise:
                return lam
            free[int(np.argmax(gains))] = True
        elif shrink.max() - grow.min() > noise:
            free[[int(np.argmin(grow)), int(np.argmax(shrink))]] = True
        else:
            return lam
    raise AssertionError("the active set cycles")


def min_norm_weights(vectors: Array) -> Array:
    """lambda of the shortest vector in the convex hull of the rows [n, d] ([4] eq. 8)."""
    n = len(vectors)
    vertex = np.eye(n)[int(np.argmin(np.linalg.norm(vectors, axis=1)))]
    return shortest_combination(vectors, np.zeros(n), np.ones(n), vertex)


def _box(vectors: Array, lambda0: Array, eps: float) -> Array:
    lower, upper = np.maximum(lambda0 - eps, 0), np.minimum(lambda0 + eps, 1)
    return shortest_combination(vectors, lower, upper, lambda0)


def fedaware(
    run: Run,
    *,
    alpha: float = 0.5,
    gamma: float = 1.0,
    warmup: str = "active",
    aggregate: str = "mean",
    normalize: bool = False,
) -> History:
    """[4] Alg. 1: m_i <- alpha m_i + (1 - alpha) U_i, U_i at first; x <- x - gamma sum lambda_i m_i (eq. 8).

    warmup: `active` (and `all`, whose first round records all clients) solves over the clients received so far;
        `fedavg` moves by sum c_i U_i (rule `aggregate`) until the round in which every client has been received.
    normalize: the public code: each m_i over its norm before solving and summing, alpha weighs the new U_i.
    State: x [d], m_i [N, d], seen_i [N]; lambda_i [N] is the solution of this round, 0 elsewhere.
    """
    problem, rounds, x0, local = run
    assert warmup in ("active", "all", "fedavg")
    n = problem.count
    keep = 1 - alpha if normalize else alpha
    x, momentum, seen = x0.copy(), np.zeros((n, len(x0))), np.zeros(n)
    history: History = []
    for r in rounds:
        lam = np.zeros(n)
        if r.arrived:
            update = updates(problem, r, x, local)
            momentum, seen = momentum.copy(), seen.copy()
            for i in r.arrived:
                momentum[i] = keep * momentum[i] + (1 - keep) * update[i] if seen[i] else update[i]
                seen[i] = 1
            if warmup == "fedavg" and not seen.all():
                x = x - gamma * aggregate_of(aggregate, problem, r, update)
            else:
                length = np.linalg.norm(momentum, axis=1)
                active = np.flatnonzero(seen * length if normalize else seen)
                if len(active):
                    vectors = momentum[active] / length[active, None] if normalize else momentum[active]
                    lam[active] = min_norm_weights(vectors)
                    x = x - gamma * lam[active] @ vectors
        history.append({"x": x, "m_i": momentum, "seen_i": seen, "lambda_i": lam})
    return history


def fedmgda(run: Run, *, eps: float = 1.0, gamma: float = 1.0) -> History:
    """Hu 2022: u_i = U_i/|U_i|; x <- x - gamma sum lambda_i u_i, the shortest within eps of lambda0.

    lambda0: w renormalised over the received clients with U_i not 0; the others are left out. State: x,
    lambda_i [N].
    """
    problem, rounds, x0, local = run
    x, history = x0.copy(), []
    for r in rounds:
        lam = np.zeros(problem.count)
        update = {i: u for i, u in updates(problem, r, x, local).items() if np.any(u)}
        if update:
            ids = list(update)
            vectors = np.array([update[i] / np.linalg.norm(update[i]) for i in ids])
            w = problem.weights[ids]
            lam[ids] = _box(vectors, w / w.sum(), eps)
            x = x - gamma * add_up(lam[i] * vector for i, vector in zip(ids, vectors, strict=True))
        history.append({"x": x, "lambda_i": lam})
    return history
