"""The forms of a worker's local steps: one client at a time, side by side on a GPU, or several in one call."""

import math

import torch

from raylfl.core.cohort import CohortOracle
from raylfl.core.lane_oracle import LaneOracle
from raylfl.core.lane_steps import LaneSteps
from raylfl.core.lanes import LANES, Lanes, lanes_of
from raylfl.core.oracle import LoopOracle
from raylfl.core.vectorized import VectorizedOracle
from raylfl.experiment.parts import Initial
from raylfl.runtime.workers.step_probes import ASSIGNED, StepProbes
from raylfl.runtime.workers.task import Room, Task

COPIES = 10  # vectors [d] of a client in local work: x, gradient, start, momentum, update, and copies to compare
RESERVE = 0.2  # the part of a GPU's memory that a call leaves free


class LocalForms:
    """The gradient oracles of a worker's local steps.

    oracle: the one of most tasks. together: on a GPU, the one of tasks whose clients take equal steps in one call, if
    that pays. one_by_one: why tasks have one client, None if they have several. room: what a GPU has room for.
    cohort_pays: whether one call for all clients is faster on a GPU than their own steps side by side.
    """

    def __init__(self, probes: StepProbes, initial: Initial):
        """The forms that the probe steps have shown to be right."""
        self.setup, self.loop, self.train, self.initial = probes.setup, probes.loop, probes.train, initial
        self.log, self.restore, loop = probes.training.log, probes.attributes.restore, probes.loop
        self.together: VectorizedOracle | None = None
        self.one_by_one: str | None = None
        self.oracle: LoopOracle | CohortOracle = loop
        self.cohort_pays, found = probes.cohort_pays(), probes.vectorized()
        lanes = lanes_of(loop.flat.params.device)
        if lanes is not None and probes.alone is None:
            self._on_lanes(found, lanes)
        elif isinstance(found, str):
            self.one_by_one = found
        else:
            self.oracle = found
        self.room: Room | None = None
        if loop.flat.params.device.type == "cuda" and self.oracle is not loop:
            self.room = Room(self.most_clients(probes.step_bytes()), self.side_by_side)

    def _on_lanes(self, found: VectorizedOracle | str, lanes: Lanes) -> None:
        """Has clients run side by side on lanes, and if that pays, those that take equal steps in one call.

        The buffers of a module have fixed memory side by side only, so that `runtime.vectorize=always` leaves such a
        module uncaptured. found: the vectorised form, or why there is none.
        """
        always = self.setup.runtime.vectorize == "always"
        if isinstance(found, VectorizedOracle) and (always or self.cohort_pays):
            if not self.loop.flat.buffers:
                self.together, cohort_lanes = found, lanes_of(self.loop.flat.params.device)
                assert cohort_lanes is not None
                found.lanes = self._steps(found, cohort_lanes)
            elif always:
                self.oracle = found
                return
        self.one_by_one = ASSIGNED if self.setup.assigned else None
        self.oracle = LaneOracle(self.loop)
        self.oracle.lanes = self._steps(self.oracle, lanes)

    def _steps(self, oracle: CohortOracle, lanes: Lanes) -> LaneSteps:
        runtime = self.setup.runtime
        refusal = "runtime.graphs=never" if runtime.graphs == "never" else None
        refusal = "runtime.step=autograd" if runtime.step == "autograd" else refusal
        return LaneSteps(oracle, lanes, self.log, self.restore, refusal)

    @property
    def computes_alone(self) -> bool:
        """Whether the device computes while the host does other things."""
        return self.oracle.lanes is not None

    @property
    def side_by_side(self) -> bool:
        """Whether clients always take their own steps, on lanes of a GPU."""
        return self.computes_alone and self.together is None

    def most_clients(self, step: int) -> int:
        """The number of clients whose local steps fit into the memory of the worker's part of the GPU at once.

        A client needs room for its parameters, optimizer state, carry, uploads and state, and its step for the `step`
        bytes that a measured one allocates. The card counts as the largest power of two GiB below its size, of
        which a fifth and the data set are left out, so that cards of one class give the same division.
        """
        flat, setup = self.loop.flat, self.setup
        total = torch.cuda.get_device_properties(flat.params.device).total_memory
        size_class = 2 ** math.floor(math.log2(total / 2**30)) * 2**30
        held = sum(t.numel() * t.element_size() for t in self.train.tensors or ())
        room = size_class * min(setup.runtime.on(1).gpus, 1.0) * (1 - RESERVE) - held
        state = sum(rows.numel() for rows in setup.fresh_state(self.initial).values())
        client = flat.params.element_size() * (COPIES * flat.width + 2 * (state + len(self.initial.moments)))
        most = (room - LANES * step) / client if self.side_by_side else room / (client + step)
        return max(1, int(most))

    def of(self, task: Task) -> LoopOracle | CohortOracle:
        """The oracle of a task's local steps."""
        if self.setup.merged and task.batch_sizes[0] >= len(self.setup.shards.indices):
            return self.loop  # whose module the gradients of all data are of
        if self.together is None or not self.train.plain:
            return self.oracle
        sizes = {(len(self.setup.shards[c]), size) for c, size in zip(task.clients, task.batch_sizes, strict=True)}
        return self.together if len(set(task.steps)) == len(sizes) == 1 else self.oracle

    def forget_lanes(self) -> None:
        """Frees the fixed memory of local steps on a GPU, and their graphs."""
        for oracle in (self.oracle, self.together):
            if oracle is not None and oracle.lanes is not None:
                oracle.lanes.forget()

    def doubt(self) -> None:
        """Called before an evaluation, whose user code may change what a step reads."""
        for oracle in {self.loop, self.oracle, self.together or self.oracle}:
            oracle.doubt()
