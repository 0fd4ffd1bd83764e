"""Split learning on shipped networks: the trajectories of SFL and FedAvg, bit for bit, at the cost of a cut model."""

from __future__ import annotations

import pytest
import torch

import raylfl


@pytest.mark.parametrize(("model", "size", "cut"), [("lenet5", 28, "layers.pool1"), ("vgg9", 32, "layers.pool2")])
@pytest.mark.parametrize(("whole", "split"), [("sfl", "ssl"), ("fedavg", "splitfed")])
def test_a_cut_model_takes_the_trajectory_of_the_whole_one(runs, model, size, cut, whole, split):
    world = [
        f"model.name={model}",
        f"data.init_args.upscale={size}",
        "participation.name=uniform",
        "participation.size=2",
        "local.steps=2",
        "local.batch_size=4",
        "rounds=2",
        "eval.every=0",
        "runtime.backend=local",
    ]
    together = raylfl.run("digits", [*runs, *world, f"algorithm.name={whole}"])
    apart = raylfl.run("digits", [*runs, *world, f"algorithm.name={split}", f"algorithm.cut={cut}"])
    assert torch.equal(together.params, apart.params)
    assert apart.metrics[-1]["cost/uplink_floats"] != together.metrics[-1]["cost/uplink_floats"]
