"""The profile of a recorded local step: the time of each operator call, and its least time on this machine."""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from raylfl.core.oracle import private_randomness
from raylfl.replay.contents import kind_of, leaves_of
from raylfl.replay.recorded.calls import Call, Geometry, Slot, numbers_in
from raylfl.replay.recorded.program import Program, compile_source
from raylfl.replay.recorded.source import Source
from raylfl.runtime.workers.worker import Worker

TIMES = 40  # steps measured; the shortest time of each call counts
SQUARE, STREAM = 768, 2**15  # sizes of the matrix product and of the copy that measure the machine's peak
SAMPLES, CHANNELS = 32, 64  # sizes of the convolution


@dataclass(frozen=True)
class Peak:
    """The peak rates of one thread on this machine.

    products, convolutions: multiplications and additions per second in a large matrix product and in a large
    convolution, for which torch uses different libraries. bytes: bytes read and written per second by a copy within the
    caches.
    """

    products: float
    convolutions: float
    bytes: float

    @property
    def operations(self) -> float:
        """Multiplications and additions per second, by the faster library."""
        return max(self.products, self.convolutions)

    @staticmethod
    def measured() -> Peak:
        square, product = torch.randn(SQUARE, SQUARE), torch.empty(SQUARE, SQUARE)
        images, filters = (
            torch.randn(shape).to(memory_format=torch.channels_last)
            for shape in ((SAMPLES, CHANNELS, 16, 16), (CHANNELS, CHANNELS, 3, 3))
        )
        numbers, copy = torch.randn(STREAM), torch.empty(STREAM)
        return Peak(
            2 * SQUARE**3 / _shortest(lambda: torch.mm(square, square, out=product)),
            2 * images.numel() * CHANNELS * 9 / _shortest(lambda: torch.conv2d(images, filters, padding=1)),
            2 * numbers.nbytes / _shortest(lambda: copy.copy_(numbers)),
        )


@dataclass(frozen=True)
class StepProfile:
    """The times of a recorded local step.

    calls: one row for each operator call in order, with its time `us` and its time at the machine's peak rates, `us at
    peak`, in microseconds. seconds: the time of one whole replay, including Python code between the calls.
    """

    calls: list[dict[str, Any]]
    seconds: float

    @property
    def kernels(self) -> float:
        """The seconds of all operator calls together."""
        return float(sum(row["us"] for row in self.calls)) / 1e6

    @property
    def at_peak(self) -> float:
        """The seconds that all operator calls would take at the machine's peak rates."""
        return float(sum(row["us at peak"] for row in self.calls)) / 1e6


def step_profile(worker: Worker, peak: Peak | None = None) -> StepProfile | None:
    """The profile of the recorded step that the worker has replayed most often; None if it has replayed none.

    peak: the machine's peak rates, measured if None.
    """
    steps, indices = worker.loop.steps, worker.setup.shards.indices
    for key, kind in sorted(steps.kinds.items(), key=lambda item: -item[1].replays.total()):
        if kind.program is None:
            continue
        program = kind.program
        shape = program.recording.geometry[0].shape
        content = worker.train.batch(indices[: shape[0] if shape else 1]).content
        if kind_of(content) == key[0]:  # the program was recorded for such batches
            return _profiled(worker, program, content, peak or Peak.measured())
    return None


def _profiled(worker: Worker, program: Program, content: Any, peak: Peak) -> StepProfile:
    leaves, row = leaves_of(content), worker.flat.params.new_empty(worker.flat.width)
    buffers = worker.flat.read_buffers()
    with private_randomness(0):
        whole = _shortest(lambda: program(leaves, row))
        seconds = call_seconds(program, leaves, row)
    worker.flat.write_buffers(buffers)
    rows = [
        {
            "operator": (str(call.op._schema.name) if call.outs else call.op.name()).removeprefix("aten::"),
            "us": taken * 1e6,
            "us at peak": at_peak(call, program.plan.geometry, peak) * 1e6,
        }
        for call, taken in zip(program.calls, seconds, strict=True)
    ]
    return StepProfile(rows, whole)


def call_seconds(program: Program, leaves: Sequence[Tensor], row: Tensor) -> list[float]:
    """The duration of each operator call in seconds, the shortest of TIMES runs of the step.

    leaves, row: as in a call of the program. The module's buffers and the random generators change as in these steps.
    """
    stamps: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = function(*args, **kwargs)
            stamps.append(time.perf_counter() - begin)
            return result

        return call

    listing, names = Source(program.plan, program.sizes, program.direct).write()
    step = compile_source(listing, {name: timed(value) if callable(value) else value for name, value in names.items()})
    runs: list[list[float]] = []
    for _ in range(TIMES):
        stamps.clear()
        with torch._C._AutoDispatchBelowAutograd():
            step(row, *leaves)
        runs.append(list(stamps))
    return [min(column) for column in zip(*runs, strict=True)]


def at_peak(call: Call, geometry: dict[int, Geometry], peak: Peak) -> float:
    """The seconds that an operator call takes at the machine's peak rates; 0 for views.

    The result is the larger of two times: the time for the call's operations, and the time for reading its arguments
    and writing its results. geometry: number of a value in the recording -> the value's shape and dtype.
    """
    if call.views:
        return 0.0
    given, made = ([geometry[k] for k in slots] for slots in (reads(call), call.results))
    moved = sum(math.prod(g.shape) * g.dtype.itemsize for g in [*given, *made])
    return max(operations(call, geometry) / peak.operations, moved / peak.bytes)


def reads(call: Call) -> list[int]:
    """The numbers of the values in a call's arguments, without those that only receive results, such as `out`."""
    return numbers_in((call.args, {name: value for name, value in call.kwargs.items() if name not in call.outs}))


def operations(call: Call, geometry: dict[int, Geometry]) -> float:
    """The number of multiplications and additions of a matrix product or a convolution; 0 for other calls.

    geometry: as in `at_peak`.
    """
    count = flop_registry.get(call.op.overloadpacket)
    parts = call.args, call.kwargs, call.result
    args, kwargs, result = tree_map_only(Slot, lambda slot: geometry[slot.number].empty("meta"), parts)
    return float(count(*args, **kwargs, out_val=result)) if count else 0.0


def _shortest(function: Callable[[], Any]) -> float:
    """The shortest CPU time of a call, in seconds, among TIMES calls."""
    return min(timeit.repeat(function, timer=time.thread_time, repeat=TIMES, number=1))
