"""Split learning on shipped networks: the trajectories of SFL and FedAvg, bit for bit, at the cost of a cut model."""

from __future__ import annotations

import pytest
import torch

import raylfl
from tests.shares import also


@pytest.mark.parametrize(("model", "size", "cut"), [("lenet5", 28, "layers.pool1"), also("vgg9", 32, "layers.pool2")])
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


@pytest.mark.parametrize("cut", ["layers.pool1", also("layers.relu2"), also("layers.fc2")])
def test_what_passes_the_cut_does_not_depend_on_how_the_gradient_is_taken(runs, cut):
    """The gradient is computed by matrix products with the batch last, by kernels, and by autograd (module's
    optimizer).
    """
    world = ["model.name=lenet5", "data.init_args.upscale=28", "participation.name=uniform", "participation.size=3"]
    world += ["local.batch_size=8", "rounds=2", "eval.every=0", "runtime.backend=local", "algorithm.name=ssl"]
    ways = ["runtime.layout=batch_last", "runtime.layout=channels_last", "model.class_path=tests.runtime.modules.Plain"]
    rows = []
    for way in ways:
        model = world[1:] if "class_path" in way else world
        result = raylfl.run("digits", [*runs, *model, f"algorithm.cut={cut}", way])
        rows.append({k: v for k, v in result.metrics[-1].items() if k.startswith("cost/")})
    assert rows[0] == rows[1] == rows[2]
    assert rows[0]["cost/uplink_floats"] > 0
