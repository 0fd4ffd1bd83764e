"""What the host does for a step that is a graph: launches, operators outside graphs and Python calls, counted."""

import sys
from dataclasses import replace

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import gpu
from raylfl.core.lane_steps import Kind, LaneSteps
from raylfl.replay.proof import ProofSchedule
from tests.core.emulated_lanes import EmulatedLanes, Tape
from tests.runtime.measured import rounds_of
from tests.runtime.test_lanes import SAME_SIZES
from tests.shares import also


class Counted(EmulatedLanes):
    """Lanes whose graphs do nothing; `launches` counts them."""

    def __init__(self):
        super().__init__(4)
        self.launches = 0

    def launch(self):
        self.launches += 1

    def capture(self, lane, function):
        super().capture(lane, function)
        return self.launch

    def capture_all(self, functions, before, after):
        super().capture_all(functions, before, after)
        return self.launch


def calls_and_launches(monkeypatch, steps, config):
    """(Python calls in raylfl, torch operators, launches) of the third call of a run, whose graphs are known."""
    monkeypatch.setattr(Kind, "is_new", lambda kind, c: not kind.compared)
    monkeypatch.setattr(ProofSchedule, "due", lambda *args: False)
    monkeypatch.setattr(LaneSteps, "_compare", _assume)
    counted = []
    plain = LaneSteps.run

    def run(self, call):
        frames, operators, before = [], Operators(), self.lanes.launches

        def profile(frame, event, argument):
            if event == "call" and "/raylfl/" in frame.f_code.co_filename:
                frames.append(frame.f_code.co_name)

        sys.setprofile(profile)
        try:
            with operators:
                return plain(self, call)
        finally:
            sys.setprofile(None)
            counted.append((len(frames), operators.count, self.lanes.launches - before))

    monkeypatch.setattr(LaneSteps, "run", run)
    lanes = Counted()
    monkeypatch.setattr("raylfl.runtime.workers.forms.lanes_of", lambda device: lanes)
    fixed = ["runtime.backend=local", "runtime.micro_cohort=8", SAME_SIZES, "runtime.vectorize=never", "rounds=4"]
    rounds_of(config, [*fixed, f"local.steps={steps}", "local.batch_size=2", "participation.size=3"])
    return counted[-1]


def _assume(self, step, kind):
    """Takes a step as if it had been compared."""
    kind.logs = self.plain.take(step)
    kind.compared.update({0: 2, 1: 2})
    self._capture(step)


class Operators(TorchDispatchMode):
    """Counts operator calls: copies, waits and launches outside graphs."""

    _should_skip_dynamo = Tape._should_skip_dynamo
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["W1", also("W2"), "W3", also("pfl"), also("ResNet-18")])
def test_a_captured_step_is_one_launch_and_nothing_else(monkeypatch, name):
    """More steps add launches only: no operator outside graphs, so no copy and no wait, and at most 60 Python calls."""
    workload = replace(gpu.SPEED[name], clients=8, samples=8 * 6)
    few, many = (calls_and_launches(monkeypatch, k, workload.config(4)) for k in (2, 5))
    steps = many[2] - few[2]
    assert steps == 3  # of three clients at once
    views = 3 * steps  # of the losses of each step
    assert many[1] - few[1] <= views
    assert (many[0] - few[0]) / steps <= 60
