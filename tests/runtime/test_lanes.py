"""Local steps on lanes against plain runs on the host: the same bits, with and without graphs."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import raylfl
from tests.core.emulated_lanes import EmulatedLanes
from tests.runtime.test_run import DIGITS

MLP = "model={name: mlp, init_args: {in_shape: [1, 8, 8], num_classes: 10}}"


def run_on_lanes(config, overrides, count=3):
    lanes = EmulatedLanes(count)
    with mock.patch("raylfl.runtime.workers.worker.lanes_of", return_value=lanes):
        return raylfl.run(config, [*overrides, "runtime.backend=local"]), lanes


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "focus", "fedprox"])
def test_graphs_have_the_bits_of_steps_without_graphs(runs, algorithm):
    settings = [*runs, MLP, f"algorithm.name={algorithm}", "rounds=3", "local.steps=4", "runtime.vectorize=never"]
    settings += ["runtime.micro_cohort=8"]
    ours, lanes = run_on_lanes(DIGITS, settings)
    plain, _ = run_on_lanes(DIGITS, [*settings, "runtime.graphs=never"])
    assert lanes.replays > lanes.captures > 2
    assert torch.equal(ours.params, plain.params)
    here = raylfl.run(DIGITS, [*settings, "runtime.backend=local"])
    torch.testing.assert_close(ours.params, here.params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_vectorised_steps_are_captured_too(runs, algorithm):
    settings = [*runs, MLP, f"algorithm.name={algorithm}", "rounds=3", "local.steps=4", "runtime.micro_cohort=8"]
    settings += ["local.sampling=with_replacement"]
    ours, lanes = run_on_lanes(DIGITS, settings)
    plain, _ = run_on_lanes(DIGITS, [*settings, "runtime.graphs=never"])
    assert lanes.replays > lanes.captures == 1
    assert torch.equal(ours.params, plain.params)
    here = raylfl.run(DIGITS, [*settings, "runtime.backend=local"])
    torch.testing.assert_close(ours.params, here.params, rtol=1e-5, atol=1e-6)


def test_a_call_of_equal_clients_is_one_graph_a_step(runs):
    settings = [*runs, MLP, "rounds=4", "local.steps=4", "local.sampling=with_replacement", "runtime.vectorize=never"]
    settings += ["runtime.micro_cohort=8"]
    ours, lanes = run_on_lanes(DIGITS, settings)
    plain, _ = run_on_lanes(DIGITS, [*settings, "runtime.graphs=never"])
    assert torch.equal(ours.params, plain.params)
    assert lanes.joint > 0
