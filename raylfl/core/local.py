"""The local solver: K_i steps of a local optimizer for client i, with gradients from an oracle.

Plain SGD steps are x <- x - eta v, with learning rate eta and the algorithm's direction v. The solver runs C clients at
once, one per row of X [C, d]. It sorts them by falling K_i: in each step, the clients that are not finished are the
first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Floats
from raylfl.core.lane_memory import LocalCall
from raylfl.core.local_optimizer import SGD, LocalOptimizer
from raylfl.core.local_rule import LocalRule
from raylfl.core.local_step import Observer, step_along
from raylfl.core.returned import finish_of, start_of, start_point_of
from raylfl.core.samples import sizes_of

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm, State, Work
    from raylfl.core.oracle import Batch, Oracle


class Tally(NamedTuple):
    """Numbers about the local work of C clients, one each [C].

    losses: the mean loss over the K_i local steps, nan for K_i = 0. last_losses: the last finite loss, nan if there is
    none. gradients: the number of sample gradients computed. drift: the sum over k < K_i of |x_{i,k} - x_{i,0}|^2,
    where x_{i,k} are client i's parameters after k local steps; None if not measured.
    """

    losses: Floats
    last_losses: Floats
    gradients: Floats
    drift: Floats | None


@dataclass
class LocalResult:
    """The local results of C clients, in the order in which the clients were given.

    uploads, client_state: name -> rows [C, ...]. moments: the new states of the local optimizer, one row of m floats
    per client [C, m]. read: returns the `tally`, after a wait for the device.
    """

    uploads: State
    client_state: State
    moments: Tensor
    read: Callable[[], Tally]

    @cached_property
    def tally(self) -> Tally:
        """The clients' losses and further numbers; the first access waits for the device."""
        return self.read()


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
    optimizer: LocalOptimizer | None = None,
    moments: Tensor | None = None,
    observer: Observer | None = None,
    measure_drift: bool = False,
) -> LocalResult:
    """Runs work.steps[i] local steps of each client i, for C clients; returns their uploads, states and losses.

    batches(t, rows): the mini-batches of local step t for the clients `rows`, numbered 0..C-1. seeds(t, row): the seed
    of the global random generators for client `row` in local step t, or for its full-batch gradient if t = -1.
    full_batches: for algorithms with `full_gradient`, each client's samples as one batch. optimizer: None stands for
    SGD with the rule's momentum. moments: the optimizer's states before the first step, [C, m] or one state [m] for
    all clients; None: zeros. observer: callbacks around the steps. measure_drift: whether to compute `Tally.drift`.
    """
    optimizer, observer = optimizer or SGD(rule.momentum), observer or Observer()
    steps = work.steps.astype(np.int64)
    count, width = len(steps), oracle.width
    oracle.t = 0
    order = np.argsort(-steps, kind="stable")  # active clients are a prefix
    inverse = np.argsort(order, kind="stable")
    identity = bool((order == np.arange(count)).all())

    def sorted_rows(rows: Tensor) -> Tensor:
        return rows if identity or len(rows) == 1 else rows[torch.from_numpy(order)]

    if not identity:
        oracle.reorder(order)
    x = oracle.workspace(count)
    start = sorted_rows(start_point_of(algorithm, broadcast, client_state, count, width).expand(count, width))
    carry: State = {"x_start": start}
    x.copy_(start)
    if full_batches is not None:
        whole = [full_batches[i] for i in order]
        loss, carry["full_gradient"] = oracle.gradients(x, whole, lambda c: seeds(-1, int(order[c])))
        carry["full_loss"] = loss[:, None].to(x)
    started = start_of(algorithm, broadcast, client_state, work, count)
    carry |= {name: sorted_rows(rows.expand(count, *rows.shape[1:])) for name, rows in started.items()}
    inner = x.new_zeros(count, optimizer.width(width))
    if moments is not None:
        inner.copy_(sorted_rows(moments.expand(inner.shape)))
    optimizer.begin(inner)

    ids, falling = order.tolist(), steps[order]
    actives: list[int] = np.count_nonzero(falling > np.arange(steps.max(initial=0))[:, None], axis=1).tolist()
    losses: list[Tensor] = []
    samples: list[list[int]] = []
    drift = torch.zeros(count, dtype=torch.float64) if measure_drift else None
    if actives:
        observer.begin()
    on_lanes = oracle.lanes is not None and optimizer.on_tensors and not observer.between_steps
    if side_by_side := (bool(actives) and on_lanes):
        assert oracle.lanes is not None
        rates = [work.lr * rule.lr_schedule.over_steps(t) for t in range(len(actives))]
        call = LocalCall(
            *(algorithm, rule, optimizer, batches, seeds, x, inner, carry, ids, falling.tolist(), actives, rates),
            measure_drift,
            observer,
        )
        taken = oracle.lanes.run(call)
        inner, carry, losses, samples = taken.inner, taken.carry, taken.losses, taken.samples
        drift = taken.drift if measure_drift else None
    for t, active in enumerate([] if side_by_side else actives):
        rows = ids[:active]
        at, batch = x[:active], batches(t, rows)
        if drift is not None:
            drift[:active] += torch.linalg.vector_norm(at - start[:active], dim=1, dtype=torch.float64).cpu() ** 2
        observer.before_step(t, batch)
        oracle.t = t
        loss, g = oracle.gradients(at, batch, lambda c, t=t, rows=rows: seeds(t, rows[c]))  # type: ignore[misc]
        losses.append(loss)
        samples.append(sizes_of(batch))
        observer.after_gradient(g)
        rate = work.lr * rule.lr_schedule.over_steps(t)
        if active == count:
            carry = step_along(algorithm, rule, optimizer, at, g, carry, inner, rate)
        else:
            some = {name: rows[:active] for name, rows in carry.items()}
            moved = step_along(algorithm, rule, optimizer, at, g, some, inner[:active], rate)
            carry = {name: torch.cat([moved[name], rows[active:]]) for name, rows in carry.items()}
        observer.after_step(t, rows, loss)
    oracle.t = 0  # for full gradients after the local steps
    if actives:
        observer.end()
    optimizer.end(inner)

    if not identity:
        back = torch.from_numpy(inverse)
        oracle.reorder(inverse)
        x, inner, carry = x[back], inner[back], {name: rows[back] for name, rows in carry.items()}
    uploads, new_own = (
        {name: _kept(rows, oracle.held) for name, rows in state.items()}
        for state in finish_of(algorithm, x, carry, client_state, work)
    )
    first = [b.size for b in whole] if full_batches is not None else [0] * count
    values = torch.cat(losses).double() if losses else torch.zeros(0)

    def read() -> Tally:
        means, last, seen = _tally(falling, values.cpu().numpy(), samples, first)
        drifts = None if drift is None else drift.cpu().numpy()[inverse]
        return Tally(means[inverse], last[inverse], seen[inverse], drifts)

    return LocalResult(uploads, new_own, inner, read)


def _tally(
    steps: np.ndarray, values: np.ndarray, samples: Sequence[Sequence[int]], first: Sequence[int]
) -> tuple[Floats, Floats, Floats]:
    """(mean losses, last finite losses, numbers of sample gradients) of the clients, [C] each.

    The mean loss of a client without local steps is nan. The last finite loss of a client without finite losses is nan.
    steps: K_i, in falling order. values, samples: the losses, one local step after the other, and for each step, the
    batch sizes; the clients that took a step are the first ones. first: the number of sample gradients of each client
    before the local steps.
    """
    total, last, seen = np.zeros(len(steps)), np.full(len(steps), np.nan), np.array(first, dtype=np.float64)
    at = 0
    for sizes in samples:
        active, loss = len(sizes), values[at : at + len(sizes)]
        at += active
        total[:active] += loss
        np.copyto(last[:active], loss, where=np.isfinite(loss))
        seen[:active] += sizes
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / steps, last, seen


def _kept(rows: Tensor, held: Tensor | None) -> Tensor:
    """The rows; a copy if they are stored in `held`, the memory that the oracle's next call overwrites."""
    inside = held is not None and rows.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
    return rows.clone() if inside else rows
