"""Local steps on a GPU in fixed memory, captured as CUDA graphs.

Batch, gradient, direction and update of a step (`FixedSteps`) become one graph, which later steps repeat by one launch.
Units are divided among lanes that run at the same time; equal steps of all units become one graph.

The reference of a graph is the same step without a graph. Two steps of each of two clients are compared before a graph
is used, and later every step whose number is a power of two: parameters, optimizer state, carry, buffers, loss and
logged values must have the same bits, and the reference must leave the module's Python attributes unchanged. At the
same steps, a vectorised gradient is compared with the reference step of its clients.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Ints
from raylfl.core.cohort import CohortOracle
from raylfl.core.fixed_steps import FixedSteps, Step
from raylfl.core.lane_memory import LocalCall, LocalSteps, Memory, indices_of, round_up
from raylfl.core.lanes import Lanes
from raylfl.core.oracle import Batch, GradientMode, seed_everything
from raylfl.core.samples import BatchSource, sizes_of
from raylfl.core.vectorized import VectorizedOracle
from raylfl.errors import BadConfig, headline
from raylfl.replay.contents import Refused, kind_of, leaves_of, map_leaves
from raylfl.replay.effects import attributes_of, first_difference
from raylfl.replay.proof import ProofSchedule, describe, far
from raylfl.replay.step_log import StepLog

COMPARED = 2  # clients, and steps of each, that are compared before a graph is used
MOST = 8192  # graphs of a worker; further kinds of steps run without one
CAPTURED = GradientMode("captured", "one CUDA graph for each step, whose results have autograd's bits")
COMPARING = GradientMode("autograd", "to compare a captured step with it")


@dataclass
class Kind:
    """A kind of step, such as steps on batches of 20 samples. compared: client -> comparisons.

    trusted: how many graphs were used without a comparison. draws: whether a step draws random numbers on the device.
    logs: the names of the values that a step logs.
    """

    compared: Counter[int] = field(default_factory=Counter)
    trusted: int = 0
    draws: bool = False
    logs: tuple[str, ...] = ()

    def is_new(self, c: int) -> bool:
        """Whether a step of the unit whose first client is c is among the first, which are all compared."""
        return self.compared[c] < COMPARED and (c in self.compared or len(self.compared) < COMPARED)


class LaneSteps:
    """The local steps of the clients of a call, on the lanes of a device.

    restore: gives the module's Python attributes their initial values, so that clients do not affect each other.
    refusal: why steps run without graphs, as the end of a sentence that begins with `training_step`, or an option.
    """

    def __init__(
        self,
        units: CohortOracle,
        lanes: Lanes,
        log: StepLog,
        restore: Callable[[], None] = lambda: None,
        refusal: str | None = None,
    ):
        self.units, self.lanes, self.log, self.restore, self.refusal = units, lanes, log, restore, refusal
        self.plain = FixedSteps(units, lanes, log)
        self._restored = False  # whether the attributes are those of the current client
        self.memory: Memory | None = None
        self.kinds, self.schedule = dict[Any, Kind](), ProofSchedule()
        self.graphs: dict[Any, Callable[[], None]] = {}
        self._leaves: dict[Any, list[Tensor]] = {}  # the batches of graphs that do not gather their own
        self._seen: set[Any] = set()
        self._made_for: Any = None  # what the graphs depend on beside the memory
        self._logged: dict[int, dict[str, list[int]]] = {}  # step -> name -> the clients that logged it

    def doubt(self) -> None:
        """Called before an evaluation, whose user code may change what a step reads."""
        self.schedule.doubt()

    def run(self, call: LocalCall) -> LocalSteps:
        """Takes all local steps of a call; `call.x` holds the parameters after each client's last step."""
        count, total = len(call.x), len(call.actives)
        batches = [call.batches(t, call.ids[:active]) for t, active in enumerate(call.actives)]
        source, indices = indices_of(batches)
        sizes = [sizes_of(step) for step in batches]
        memory = self._memory_for(call, total, max(map(max, sizes), default=0), source)
        self._fill(memory, call, indices)
        self._logged = {}
        units = [slice(0, count)] if self.units.together else [slice(c, c + 1) for c in range(count)]
        try:
            if len(units) > 1 and source is not None and self._is_proved(call, sizes):
                self._restored, rows = False, slice(0, count)
                for t in range(total):
                    size = sizes[t][0]
                    step = Step(call, source, 0, rows, size, None, (size, count), t, joint=True)
                    self._note(t, rows, self._take(step, next_alike=True))
            else:
                self._take_units(call, source, units, sizes, batches)
        except torch.OutOfMemoryError:
            self.forget()
            raise
        except BaseException:  # a capture may have been cut short
            self._forget()
            raise
        losses = [memory.losses[:active, t] for t, active in enumerate(call.actives)]
        self._observe(call, losses)
        return LocalSteps(
            memory.inner[:count].clone(),
            {name: rows[:count].clone() for name, rows in memory.carry.items()},
            losses,
            sizes,
            memory.drift[:count].clone(),
        )

    def _take_units(
        self,
        call: LocalCall,
        source: BatchSource | None,
        units: Sequence[slice],
        sizes: Sequence[Sequence[int]],
        batches: Sequence[Sequence[Batch]],
    ) -> None:
        """Takes all steps of each unit, one unit after the other, divided among the lanes."""
        contents: list[list[Any]] = [] if source is not None else [list(step) for step in batches]
        self.lanes.fork(len(units))
        try:
            for number, rows in enumerate(units):
                lane, self._restored = number % self.lanes.count, False
                self.lanes.on(lane)
                for t in range(call.steps[rows.start]):
                    size = sizes[t][rows.start]
                    content, key = None, size
                    if source is None:
                        seed_everything(call.seeds(t, call.ids[rows.start]))
                        content = contents[t][rows.start].content
                        contents[t][rows.start] = None  # frees the batch after its step
                        key = self._key(content, size)
                    next_alike = t + 1 < call.steps[rows.start] and sizes[t + 1][rows.start] == size
                    next_alike = next_alike and source is not None
                    step = Step(call, source, lane, rows, size, content, key, t)
                    self._note(t, rows, self._take(step, next_alike))
        finally:
            self.lanes.join()

    def _key(self, content: Any, size: int) -> Any:
        """Identifies the kind of a step on a batch that it does not gather by index."""
        if self.refusal is None:
            try:
                return kind_of(content, numbers=True), size
            except Refused as refused:
                self._refuse(str(refused))
        return size

    def _note(self, t: int, rows: slice, names: Sequence[str]) -> None:
        """Notes which clients have logged these names in step t."""
        for name in names:
            self._logged.setdefault(t, {}).setdefault(name, []).extend(range(rows.start, rows.stop))

    def _is_proved(self, call: LocalCall, sizes: Sequence[Sequence[int]]) -> bool:
        """Whether all clients take the same steps, of kinds whose graphs are known to be right."""
        alike = self.refusal is None and len(set(call.steps)) == 1 and all(len(set(step)) == 1 for step in sizes)
        return alike and all(step[0] in self.kinds and len(self.kinds[step[0]].compared) >= COMPARED for step in sizes)

    def _observe(self, call: LocalCall, losses: Sequence[Tensor]) -> None:
        """Passes the values that the steps logged to the call's observer."""
        assert self.memory is not None
        for t, loss in enumerate(losses):
            clients: dict[tuple[int, ...], list[str]] = {}  # clients that logged the same names
            for name, rows in self._logged.get(t, {}).items():
                clients.setdefault(tuple(rows), []).append(name)
            for these, names in clients.items():
                self.log.values = {name: self.memory.logged[name][list(these), t] for name in names}
                call.observer.after_step(t, [call.ids[c] for c in these], loss)

    # -- fixed memory ------------------------------------------------------------------------------------------------

    def _memory_for(self, call: LocalCall, steps: int, size: int, source: BatchSource | None) -> Memory:
        """The fixed memory, new if it has no room for the call; graphs of earlier memory are dropped."""
        made_for = call.algorithm, call.rule, call.optimizer, source, call.measure_drift, self.units.params.data_ptr()
        if self.memory is None or not self.memory.fits(call, steps, size) or made_for != self._made_for:
            earlier = self.memory
            self._forget()
            least = (earlier.steps, earlier.size) if earlier is not None else (1, 1)
            self.memory = Memory(call, self.units.count, round_up(steps, least[0]), round_up(size, least[1]))
            self.plain.memory = self.memory
            self._made_for = made_for
        return self.memory

    def forget(self) -> None:
        """Frees all fixed memory, after the device had too little."""
        self._forget()
        self.units.release()

    def _forget(self) -> None:
        self.kinds, self.schedule = {}, ProofSchedule()  # new graphs are compared again
        self.memory, self._made_for = None, None
        self._drop_graphs()
        self._leaves.clear()
        self._seen.clear()

    def _drop_graphs(self) -> None:
        self.graphs.clear()
        self.lanes.forget()

    def _fill(self, memory: Memory, call: LocalCall, indices: Sequence[Sequence[Ints]]) -> None:
        """Copies the start of a call into the fixed memory; the indices and rates of all steps in one copy each."""
        count = len(call.x)
        memory.inner[:count].copy_(call.inner)
        for name, rows in memory.carry.items():
            rows[:count].copy_(call.carry[name])
        if indices:
            table = np.zeros((count, len(indices), memory.size), dtype=np.int64)
            for t, step in enumerate(indices):
                if isinstance(step, np.ndarray):
                    table[: len(step), t, : step.shape[1]] = step
                else:
                    for c, samples in enumerate(step):
                        table[c, t, : len(samples)] = samples
            memory.table[:count, : len(indices)].copy_(_pin(torch.from_numpy(table), call.x), non_blocking=True)
        if call.rates != memory.rate_values:
            rates = torch.tensor(call.rates, dtype=call.x.dtype)
            memory.rates[: len(rates)].copy_(_pin(rates, call.x), non_blocking=True)
            memory.rate_values = call.rates
        memory.counters.zero_()
        memory.drift.zero_()
        for rows in memory.logged.values():
            rows.fill_(torch.nan)

    def _state(self, rows: slice) -> list[Tensor]:
        assert self.memory is not None
        return [*self.units.state(rows), *self.memory.state(rows)]

    def _restore(self, rows: slice, values: Sequence[Tensor]) -> None:
        for tensor, value in zip(self._state(rows), values, strict=True):
            tensor.copy_(value)

    # -- one step ----------------------------------------------------------------------------------------------------

    def _take(self, step: Step, next_alike: bool) -> Sequence[str]:
        """Takes a step, by its graph or without one; returns the names that it logs.

        next_alike: whether the unit's next step is of the same kind. A kind that a unit has once is not captured.
        """
        kind = self.kinds.setdefault(step.key, Kind())
        graph, first = self.graphs.get(step.graph_key), step.graph_key not in self._seen
        self._seen.add(step.graph_key)
        pays = graph is not None or ((next_alike or not first) and len(self.graphs) < MOST)
        if self.refusal is None and pays:
            if self.schedule.due(step.key, step.t) or kind.is_new(step.rows.start):
                self._compare(step, kind)
                return kind.logs
            if graph is None:
                graph = self._capture(step)
            if graph is not None:
                kind.trusted += 1
                self._replay(step, kind, graph)
                return kind.logs
        self._begin()
        seed_everything(step.seed(step.rows.start))
        self._count(GradientMode("autograd", self.refusal or "batches of this size are rare"), step)
        return self.plain.take(step)

    def _begin(self) -> None:
        """Restores the module's attributes before the first step that a client takes without a graph."""
        if not self._restored:
            self.restore()
            self._restored = True

    def _count(self, way: GradientMode, step: Step) -> None:
        self.units.ways[way] += step.rows.stop - step.rows.start

    def _replay(
        self, step: Step, kind: Kind, graph: Callable[[], None], leaves: Sequence[Tensor] | None = None
    ) -> None:
        """Takes a step by its graph. leaves: the tensors of its batch; None: the tensors of `step.content`."""
        if step.content is not None:
            values = leaves_of(step.content) if leaves is None else leaves
            for leaf, value in zip(self._leaves[step.graph_key], values, strict=True):
                leaf.copy_(value, non_blocking=True)
        if kind.draws and step.joint:
            self.lanes.seed_all([step.seed(k) for k in range(step.rows.stop)])
        elif kind.draws:
            self.lanes.seed(step.lane, step.seed(step.rows.start))
        graph()
        self._count(CAPTURED, step)

    def _compare(self, step: Step, kind: Kind) -> None:
        """Takes a step both without and with its graph, and compares; captures the graph if there is none.

        Raises BadConfig if a graph that has been used before differs.
        """
        self._begin()
        rows, module = step.rows, self.units.flat.module
        start, attributes = [t.clone() for t in self._state(rows)], attributes_of(module)
        leaves = [leaf.clone() for leaf in leaves_of(step.content)]  # the step may change its batch
        seed = step.seed(rows.start)
        if isinstance(self.units, VectorizedOracle):
            self.units.prove(rows, self.plain.gather(step), step.t, seed)
        seed_everything(seed)
        draws = self.lanes.draws()
        kind.logs = self.plain.take(step)
        self._count(COMPARING, step)
        kind.draws |= draws()
        name = first_difference(attributes, attributes_of(module))
        if name is not None:
            self._refuse(f"changes the attribute `{name}`, which a graph would not")
            return
        reference = [t.clone() for t in self._state(rows)]
        start += [torch.full_like(t, torch.nan) for t in reference[len(start) :]]  # names logged for the first time
        self._restore(rows, start)
        graph = self.graphs.get(step.graph_key) or self._capture(step)
        difference = None
        if graph is not None:
            self._replay(step, kind, graph, leaves)
            self.units.ways[CAPTURED] -= rows.stop - rows.start
            apart = max(map(far, reference, self._state(rows)), default=0.0)
            if apart == 0.0:
                kind.compared[rows.start] += 1
                self.schedule.proved(step.key, step.t)
                return
            difference = f"by {describe(apart)}"
        self._restore(rows, reference)
        if difference is not None and kind.trusted:
            number = self.schedule.uses[step.key]
            raise BadConfig(
                f"{type(module).__name__}.training_step: its captured step number {number}, of client "
                f"{step.call.ids[rows.start]} of a call, differs from the step itself ({difference}), so that earlier "
                "captured steps may be wrong (set runtime.step=autograd)"
            )
        if difference is not None and step.joint and self.plain.moves_together:
            self.plain.moves_together = False
            del self.graphs[step.graph_key]
        elif difference is not None:
            self._refuse(f"has other results as a CUDA graph ({difference})")

    def _refuse(self, reason: str) -> None:
        self.refusal = f"training_step {reason}"
        self._drop_graphs()

    def _capture(self, step: Step) -> Callable[[], None] | None:
        """The graph of a step; None, and a refusal, if the step cannot be captured."""
        fixed = step
        if step.content is not None:
            fixed = step._replace(content=map_leaves(step.content, torch.clone))
            self._leaves[step.graph_key] = list(leaves_of(fixed.content))
        try:
            if step.joint:
                before, functions, after = self.plain.parts(step)
                graph = self.lanes.capture_all(functions, before, after)
            else:
                graph = self.lanes.capture(step.lane, partial(self.plain.take, fixed))
            self.graphs[step.graph_key] = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._refuse(f"cannot be captured as a CUDA graph ({headline(error)})")
            return None
        return graph


def _pin(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in memory from which the device of `like` can copy while the host continues."""
    return tensor if like.device.type == "cpu" else tensor.pin_memory()
