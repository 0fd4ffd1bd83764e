"""Local steps in fixed memory, operator by operator, as a CUDA graph repeats them.

A unit is a group of clients that take a step together: one client (`LaneOracle`), or all (`VectorizedOracle`). Equal
steps of all units can be one `joint` step, of three `parts`: one gather for all batches, each unit's own gradient, and
one update for all rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raylfl.core.cohort import CohortOracle
from raylfl.core.flat import copy_together
from raylfl.core.lane_memory import LocalCall, Memory
from raylfl.core.lane_oracle import LaneOracle
from raylfl.core.lanes import Lanes
from raylfl.core.local_step import step_along
from raylfl.core.oracle import seed_everything
from raylfl.core.samples import BatchSource
from raylfl.replay.contents import map_leaves
from raylfl.replay.step_log import StepLog

ALIGNMENT = 256  # bytes; kernels are chosen alike for batches that begin at multiples of it


class Step(NamedTuple):
    """One local step of a unit of clients, or of several units of one client each.

    call: the call that it belongs to. source: the samples, if steps gather their batches by index, else None. lane:
    where it runs. rows: its clients. size: the number of samples of each batch. content: the batch if there is no
    source. key: identifies its kind. t: its number. joint: whether it is of several units.
    """

    call: LocalCall
    source: BatchSource | None
    lane: int
    rows: slice
    size: int
    content: Any
    key: Any
    t: int
    joint: bool = False

    @property
    def graph_key(self) -> tuple[int, int, Any]:
        """Identifies the graph of the step: its clients and kind."""
        return self.rows.start, self.rows.stop, self.key

    def seed(self, c: int) -> int:
        """The seed of the random generators for the unit whose first client is c."""
        return self.call.seeds(self.t, self.call.ids[c])


class FixedSteps:
    """The steps of the clients of a call in `memory`, which the caller sets.

    moves_together: whether a joint step moves all rows at once, which gives other bits where a rule sums up a row.
    """

    memory: Memory

    def __init__(self, units: CohortOracle, lanes: Lanes, log: StepLog):
        self.units, self.lanes, self.log = units, lanes, log
        self.moves_together = True

    def take(self, step: Step) -> tuple[str, ...]:
        """Takes a step, a joint one unit by unit; returns the names that it logs."""
        if step.joint:
            for k in range(step.rows.stop):
                seed_everything(step.seed(k))
                names = self.take(step._replace(rows=slice(k, k + 1), joint=False))
            return names
        losses, g = self.units.take(step.rows, self.gather(step), step.t)
        names = self._keep_logged(step, step.rows)
        self._move(step, step.rows, losses, g)
        return names

    def parts(
        self, step: Step
    ) -> tuple[Callable[[], None], Sequence[Callable[[], tuple[str, ...]]], Callable[[], None]]:
        """A joint step as three parts: gather, one function per unit that may run at the same time, and move."""
        contents: list[Any] = []
        losses: dict[int, Tensor] = {}

        def gather() -> None:
            batches = self.gather(step)
            contents[:] = [map_leaves(batches, partial(_part, k, step.size)) for k in range(step.rows.stop)]

        def gradient(k: int) -> tuple[str, ...]:
            unit = slice(k, k + 1)
            losses[k], g = self.units.take(unit, contents[k], step.t)
            names = self._keep_logged(step, unit)
            if not self.moves_together:
                self._move(step, unit, losses[k], g)
            return names

        def move() -> None:
            if self.moves_together:
                assert isinstance(self.units, LaneOracle)
                each = torch.cat([losses[k] for k in range(step.rows.stop)])
                self._move(step, step.rows, each, self.units.gradient_rows[step.rows])

        return gather, [partial(gradient, k) for k in range(step.rows.stop)], move

    def gather(self, step: Step) -> Any:
        """The batch of a step; the batches of its clients, one after the other."""
        if step.content is not None:
            return step.content
        assert step.source is not None
        table = self.memory.table[step.rows, :, : step.size]
        return step.source.gather_at(table.index_select(1, self._counter(step.rows)).reshape(-1))

    def _counter(self, rows: slice) -> Tensor:
        return self.memory.counters[rows.start : rows.start + 1]

    def _keep_logged(self, step: Step, rows: slice) -> tuple[str, ...]:
        logged, memory = self.log.take(), self.memory
        for name, value in logged.items():
            if name not in memory.logged:
                memory.logged[name] = torch.full_like(memory.losses, torch.nan, dtype=value.dtype)
                self.lanes.settle()
            values = value.reshape(-1, 1).to(memory.losses.device)
            memory.logged[name][rows].index_copy_(1, self._counter(rows), values)
        return tuple(logged)

    def _move(self, step: Step, rows: slice, losses: Tensor, g: Tensor) -> None:
        """Moves the parameters of these clients along their gradients g [n, d], and counts the step."""
        memory, call, counter = self.memory, step.call, self._counter(rows)
        x, carry = self.units.params[rows], {name: values[rows] for name, values in memory.carry.items()}
        if call.measure_drift:
            norms = torch.linalg.vector_norm(x - carry["x_start"], dim=1, dtype=torch.float64)
            memory.drift[rows] += norms**2
        rate = memory.rates.index_select(0, counter)
        moved = step_along(call.algorithm, call.rule, call.optimizer, x, g, carry, memory.inner[rows], rate)
        copy_together([(carry[name], values) for name, values in moved.items() if values is not carry[name]])
        memory.losses[rows].index_copy_(1, counter, losses[:, None].to(memory.losses))
        memory.counters[rows] += 1


def _part(k: int, size: int, batches: Tensor) -> Tensor:
    """The batch of unit k; a copy if kernels could be chosen by where it begins."""
    batch = batches[k * size : (k + 1) * size]
    aligned = (batch.data_ptr() - batches.data_ptr()) % ALIGNMENT == 0
    return batch if aligned or not batch.is_floating_point() else batch.clone()
