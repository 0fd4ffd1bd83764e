"""Timings of a round under each form of local work, and of the round's phases: `raylfl profile CONFIG`.

A form is a pair of the settings `runtime.vectorize` and `runtime.layout`. Their value `auto` stands for a fixed rule,
because a choice by timing would make results depend on the machine's load. This module measures all forms, so that you
can set the fastest in the config.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from statistics import median
from typing import Any

import torch

from raylfl.config.groups.runtime import LAYOUTS, Layout, Vectorize
from raylfl.errors import BadConfig
from raylfl.experiment.parts import Experiment
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.workers.backend import LocalBackend

WARM_UP = 2  # rounds of each setting that are not counted (first allocations, first calls)
TURNS = 3  # blocks of rounds for each setting, interleaved, so that all settings are measured under the same load
PHASES = {  # kill point of the round loop -> name of the phase that begins there
    "collect": "local work",
    "aggregate": "server step",
    "commit": "commit",
    "draw": "next draw",
    "train": "metrics",
}
KERNELS = 12  # number of operators shown


class Candidate:
    """A run in this process under one pair of settings `vectorize` and `layout`, and the durations of its rounds.

    seconds: of each round; rule: whether `auto` selects these settings.
    """

    def __init__(self, experiment: Experiment, vectorize: Vectorize, layout: Layout):
        runtime = replace(experiment.config.runtime, vectorize=vectorize, layout=layout)
        self.vectorize, self.layout = vectorize, layout
        self.backend = LocalBackend(replace(experiment.setup, runtime=runtime))
        self.federation = Federation.of(experiment, self.backend, self._stamp)
        self.rounds = self.federation.rounds(sys.maxsize)
        self.rule, self.seconds = False, list[float]()
        self._phases: dict[str, list[float]] = {name: [] for name in PHASES.values()}
        self._stamps: list[tuple[str, float]] = []

    @property
    def form(self) -> tuple[bool, str]:
        """(whether local work is vectorised, memory layout), as the worker uses them."""
        return self.backend.one_by_one is None, self.backend.worker.layout

    def _stamp(self, phase: str, r: int) -> None:
        self._stamps.append((phase, time.perf_counter()))

    def round(self, counts: bool = True) -> None:
        """Runs the next round, and stores its durations if `counts`."""
        self._stamps = []
        next(self.rounds)
        self._stamps.append(("end", time.perf_counter()))
        if counts:
            self.seconds.append(self._stamps[-1][1] - self._stamps[0][1])
            for (phase, begun), (_, ended) in pairwise(self._stamps):
                self._phases[PHASES[phase]].append(ended - begun)

    @property
    def setting(self) -> str:
        return f"runtime.vectorize={self.vectorize} runtime.layout={self.layout}"

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def phases(self) -> dict[str, float]:
        """Name -> median duration in seconds."""
        return {name: median(values) for name, values in self._phases.items()}

    @property
    def steps_per_round(self) -> float:
        """The mean number of local steps of all clients in a round."""
        return self.federation.state.costs.local_steps / self.federation.state.round


def profile(experiment: Experiment, rounds: int) -> tuple[list[Candidate], list[dict[str, Any]]]:
    """Measures rounds of this experiment under each distinct form of local work (`vectorize` and `layout`).

    rounds: the number of measured rounds of each form. Returns all forms, the fastest first, and the rows of
    `kernels` for that one. Everything runs in this process, with the config's number of threads.
    """
    if experiment.config.runtime.processes > 1:
        raise BadConfig("a model that is sharded over processes has one form of local work: nothing to compare")
    rule = Candidate(experiment, "auto", "auto").form
    candidates: dict[tuple[bool, str], Candidate] = {}
    forms: list[Vectorize] = ["never", "always"]
    for vectorize, layout in product(forms, LAYOUTS):
        try:
            candidate = Candidate(experiment, vectorize, layout)
        except BadConfig:  # the model does not support this layout
            continue
        candidates.setdefault(candidate.form, candidate)
    for candidate in candidates.values():
        for _ in range(WARM_UP):
            candidate.round(counts=False)
    for turn in range(TURNS):
        for candidate in candidates.values():
            for _ in range(len(range(turn, rounds, TURNS))):
                candidate.round()
    candidates[rule].rule = True
    timed = sorted(candidates.values(), key=lambda candidate: candidate.median)
    return timed, kernels(timed[0])


def kernels(candidate: Candidate) -> list[dict[str, Any]]:
    """Runs one round; returns the KERNELS operators with the most CPU time, without nested calls, as table rows."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=kinds) as seen:
        candidate.round(counts=False)
    events: Sequence[Any] = seen.key_averages()
    total = sum(event.self_cpu_time_total for event in events) or 1.0
    events = sorted(events, key=lambda event: -event.self_cpu_time_total)[:KERNELS]
    return [
        {
            "kernel": event.key,
            "calls": event.count,
            "ms": round(event.self_cpu_time_total / 1e3, 2),
            "% of all kernels": round(100 * event.self_cpu_time_total / total, 1),
        }
        for event in events
    ]
