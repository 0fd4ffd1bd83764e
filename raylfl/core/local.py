"""The local solver: K_i steps of x <- x - eta v over a gradient oracle, and the implied weights a_i.

It runs C clients at once: rows of X [C, d] are clients. With unequal K_i the clients are sorted by falling K_i, and
the active ones are a shrinking prefix, so a finished client costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raylfl.core.population import Floats
from raylfl.core.samples import sizes_of
from raylfl.errors import BadValue

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm, State, Work
    from raylfl.core.oracle import Batch, Oracle


@dataclass
class Schedule:
    """Local learning rates: eta_r over rounds, and eta_t = eta_r f(t) over the local steps of a round.

    constant: 1; exponential: decay^r; sqrt: 1/sqrt(1 + r/period); `step_` variants do the same in t, from eta
    anew every round (FedACS fig. 4, lr decay: step_exponential).

    >>> [Schedule("exponential", decay=0.5).over_rounds(r) for r in range(3)]
    [1.0, 0.5, 0.25]
    >>> [Schedule("step_sqrt", period=1.0).over_steps(t) for t in (0, 3)]
    [1.0, 0.5]
    """

    name: str = "constant"
    decay: float = 1.0
    period: float = 1.0

    def __post_init__(self) -> None:
        kinds = ("constant", "exponential", "sqrt", "step_exponential", "step_sqrt")
        if self.name not in kinds:
            raise BadValue("name", got=self.name, need=f"one of {', '.join(kinds)}")
        if not 0 < self.decay <= 1:
            raise BadValue("decay", got=self.decay, need="in (0, 1], the factor a round (or a step)")
        if not self.period > 0:
            raise BadValue("period", got=self.period, need="> 0, in rounds (or steps)")

    def over_rounds(self, r: int) -> float:
        """The factor eta_r / eta_0 of round r."""
        return 1.0 if self.name.startswith("step_") else self._factor(r)

    def over_steps(self, t: int) -> float:
        """The factor eta_t / eta of local step t."""
        return self._factor(t) if self.name.startswith("step_") else 1.0

    def _factor(self, k: int) -> float:
        if self.name.endswith("exponential"):
            return self.decay**k
        if self.name.endswith("sqrt"):
            return 1.0 / math.sqrt(1.0 + k / self.period)
        return 1.0


@dataclass
class LocalRule:
    """Options of the local solver: learning rate, schedule, momentum, weight decay and clipping.

    A step, in this order: scale g by min(1, clip_norm/(|g| + 1e-6)); add weight_decay x; take the algorithm's
    direction v; buffer <- momentum buffer + v (0 at the start of every round); x <- x - eta_t buffer.
    """

    lr: float = 0.1
    schedule: Schedule | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise BadValue("lr", got=self.lr, need="> 0, the local learning rate eta")
        if not 0 <= self.momentum < 1:
            raise BadValue("momentum", got=self.momentum, need="in [0, 1)")
        if self.weight_decay < 0:
            raise BadValue("weight_decay", got=self.weight_decay, need=">= 0")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise BadValue("clip_norm", got=self.clip_norm, need="> 0, or null for no clipping")

    def step_factor(self, t: int) -> float:
        return self.schedule.over_steps(t) if self.schedule else 1.0


def a_vector(steps: int, rule: LocalRule, lr: float, proximal: float = 0.0) -> Floats:
    """The accumulation vector a_i in R^K, with U_i = eta G_i a_i: weights of the K gradients (FedNova; FedACS sec. 2).

    SGD: ones. Momentum rho: (1 - rho^{K-t})/(1 - rho). Proximal mu: (1 - eta mu)^{K-1-t}. Step schedule:
    eta_t/eta. In general: the adjoint recursion of (buffer, x) backwards from x_K, of which these are special cases.

    >>> a_vector(3, LocalRule(momentum=0.5), lr=0.1).tolist()
    [1.75, 1.5, 1.0]
    """
    a = np.empty(steps)
    on_x, on_buffer = 1.0, 0.0  # d(-x_K) / d(-x_{t+1}) and d(-x_K) / d buffer_t / eta, from the last step back
    for t in range(steps - 1, -1, -1):
        on_buffer = rule.momentum * on_buffer + rule.step_factor(t) * on_x
        a[t] = on_buffer
        on_x -= lr * proximal * on_buffer
    return a


def a_norm(steps: Sequence[int] | np.ndarray, rule: LocalRule, lr: float, proximal: float = 0.0) -> Floats:
    """Norms |a_i|_1 of the accumulation vectors for each K_i, float64 [C]; K_i itself for plain SGD.

    >>> a_norm([1, 3], LocalRule(momentum=0.5), lr=0.1).tolist()
    [1.0, 4.25]
    """
    counts = np.asarray(steps, dtype=np.int64)
    if rule.momentum == 0 and proximal == 0 and (rule.schedule is None or rule.schedule.over_steps(1) == 1.0):
        return counts.astype(np.float64)
    norms = {int(k): float(np.abs(a_vector(int(k), rule, lr, proximal)).sum()) for k in np.unique(counts)}
    return np.array([norms[int(k)] for k in counts], dtype=np.float64)


@dataclass
class LocalResult:
    """The results of C clients, in the order in which they were given.

    uploads; client_state: their new states; losses: mean loss over the K_i steps [C] (nan for K_i = 0);
    last_losses: the last finite loss of each [C]; gradients: sample gradients computed [C].
    """

    uploads: State
    client_state: State
    losses: Floats
    last_losses: Floats
    gradients: Floats


class Observer:
    """Is told of local work while it is done, between its steps; this one does nothing."""

    def begin(self) -> None:
        """Before the first step, with the parameters at the starting point."""

    def before_step(self, t: int, batches: Sequence[Batch]) -> None:
        """Before local step t on these batches."""

    def after_gradient(self, g: Tensor) -> None:
        """After the gradients g [C, d] of a step, which may be changed in place."""

    def after_step(self, t: int, rows: Sequence[int], losses: Tensor) -> None:
        """After local step t of the clients in these rows, with their losses [C]."""

    def end(self) -> None:
        """After the last step, before the uploads are made."""


def run_local(
    algorithm: Algorithm,
    oracle: Oracle,
    batches: Callable[[int, Sequence[int]], Sequence[Batch]],
    seeds: Callable[[int, int], int],
    broadcast: State,
    client_state: State,
    work: Work,
    rule: LocalRule,
    full_batches: list[Batch] | None = None,
    optimizer_step: Callable[[Tensor], None] | None = None,
    observer: Observer | None = None,
) -> LocalResult:
    """Run K_i local steps of C clients from the broadcast and their states.

    batches(t, rows): the mini-batches of local step t for these rows; seeds(t, row): the state of the global
    generators in that step (t = -1: outside of them); full_batches: each client's whole shard, where the
    algorithm wants a full gradient; optimizer_step: moves the workspace of one client along v [1, d] in place of
    x <- x - eta v; observer: is told of each step.
    """
    steps = work.steps.astype(np.int64)
    count, width = len(steps), oracle.width
    order = np.argsort(-steps, kind="stable")  # active clients are a prefix
    inverse = np.argsort(order, kind="stable")
    identity = bool((order == np.arange(count)).all())

    def sorted_rows(rows: Tensor) -> Tensor:
        return rows if identity or len(rows) == 1 else rows[torch.from_numpy(order)]

    x = oracle.workspace(count)
    carry: State = {"x_start": sorted_rows(algorithm.start_point(broadcast, client_state).expand(count, width))}
    x.copy_(carry["x_start"])
    if full_batches is not None:
        whole = [full_batches[i] for i in order]
        _, carry["full_gradient"] = oracle.gradients(x, whole, lambda c: seeds(-1, int(order[c])))
    started = algorithm.start(broadcast, client_state, work)
    carry |= {name: sorted_rows(rows.expand(count, *rows.shape[1:])) for name, rows in started.items()}
    momentum = torch.zeros_like(x) if rule.momentum else None

    ids, falling = order.tolist(), steps[order]
    actives = [int(np.count_nonzero(falling > t)) for t in range(int(steps.max(initial=0)))]
    losses: list[Tensor] = []
    samples: list[list[int]] = []
    if observer is not None and actives:
        observer.begin()
    for t, active in enumerate(actives):
        rows = ids[:active]
        at, batch = x[:active], batches(t, rows)
        if observer is not None:
            observer.before_step(t, batch)
        loss, g = oracle.gradients(at, batch, lambda c, t=t, rows=rows: seeds(t, rows[c]))  # type: ignore[misc]
        losses.append(loss)
        samples.append(sizes_of(batch))
        if observer is not None:
            observer.after_gradient(g)
        if rule.clip_norm is not None:
            g *= (rule.clip_norm / (torch.linalg.vector_norm(g, dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        if rule.weight_decay:
            g.add_(at, alpha=rule.weight_decay)
        if active == count:
            v, carry = algorithm.direction(at, g, carry)
        else:
            v, moved = algorithm.direction(at, g, {name: rows[:active] for name, rows in carry.items()})
            carry = {name: torch.cat([moved[name], rows[active:]]) for name, rows in carry.items()}
        if momentum is not None:
            v = momentum[:active].mul_(rule.momentum).add_(v)
        if optimizer_step is not None:
            optimizer_step(v)
        else:
            at.sub_(v, alpha=work.lr * rule.step_factor(t))
        if observer is not None:
            observer.after_step(t, rows, loss)
    if observer is not None and actives:
        observer.end()

    if identity:
        uploads, new_own = algorithm.finish(x, carry, client_state, work)
        uploads, new_own = ({name: _kept(rows, x) for name, rows in state.items()} for state in (uploads, new_own))
    else:
        back = torch.from_numpy(inverse)
        uploads, new_own = algorithm.finish(
            x[back], {name: rows[back] for name, rows in carry.items()}, client_state, work
        )
    first = [b.size for b in whole] if full_batches is not None else [0] * count
    mean_loss, last, seen = _tally(falling, losses, samples, first)
    return LocalResult(uploads, new_own, mean_loss[inverse], last[inverse], seen[inverse])


def _tally(
    steps: np.ndarray, losses: Sequence[Tensor], samples: Sequence[Sequence[int]], first: Sequence[int]
) -> tuple[Floats, Floats, Floats]:
    """Per client [C] the mean loss, last finite loss and sample gradients, from the values of each step's prefix."""
    total, last, seen = np.zeros(len(steps)), np.full(len(steps), np.nan), np.array(first, dtype=np.float64)
    values = torch.cat([loss.double() for loss in losses]).cpu().numpy() if losses else total[:0]
    at = 0
    for sizes in samples:
        active, loss = len(sizes), values[at : at + len(sizes)]
        at += active
        total[:active] += loss
        np.copyto(last[:active], loss, where=np.isfinite(loss))
        seen[:active] += sizes
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / steps, last, seen


def _kept(rows: Tensor, workspace: Tensor) -> Tensor:
    """These rows, copied if they are in the memory of the workspace, which the next call overwrites."""
    return rows.clone() if rows.untyped_storage().data_ptr() == workspace.untyped_storage().data_ptr() else rows
