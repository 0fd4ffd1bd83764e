"""Workers on a simulated device: no operation mixes devices, and none waits needlessly; `python -m benchmarks.gpu`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.gpu import main
from raylfl.algorithms import ALGORITHMS
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.algorithm import Algorithm
from raylfl.errors import BadConfig
from raylfl.runtime.workers.module import devices
from tests.runtime import simulated
from tests.runtime.faults import options_of
from tests.runtime.test_run import DIGITS, QUADRATICS
from tests.runtime.tiny import TINY
from tests.shares import one_in

MLP = "model={name: mlp, init_args: {in_shape: [1, 8, 8], num_classes: 10}}"
MOVING = ["local.momentum=0.9", "local.clip_norm=1.0", "local.weight_decay=0.01"]
UNEQUAL = ["local.steps={uniform: [1, 5]}", *MOVING]
TOGETHER, ALONE = "runtime.vectorize=always", "runtime.vectorize=never"
AUGMENTED = [
    "data.class_path=tests.runtime.modules.Augmented",
    "model={name: mlp, init_args: {in_shape: [2, 8, 8], num_classes: 10}}",
    "local.batch_size=4",
]
IMAGES = {
    "name": "images",
    "rounds": 2,
    "num_clients": 4,
    "data": {"name": "synthetic_images", "init_args": {"shape": [3, 32, 32], "num_train": 80, "num_test": 20}},
    "model": {"name": "cnn_fedaware"},
    "local": {"steps": 2, "batch_size": 8},
    "runtime": {"backend": "local"},
}
COMPARED = {
    "train/loss",
    "test/loss",
    "test/accuracy",
    "global/loss",
    "global/grad_norm",
    "global/distance",
    "update/norm",
    "cost/uplink_floats",
}
CASES = {
    "unequal steps": (DIGITS, [MLP, *UNEQUAL, "runtime.micro_cohort=3", "eval.global=true"]),
    "the module's optimizer": (DIGITS, [MLP, "local.optimizer=module", "runtime.vectorize=never"]),
    "dropout and BatchNorm": (DIGITS, ["local.buffers=local"]),
    "split": (DIGITS, [MLP, "algorithm.name=splitfed", "algorithm.cut=layers.relu1"]),
    "samples one by one": (TINY, ["data.class_path=tests.runtime.tiny.Items"]),
    "images, all at once": (IMAGES, ["runtime.vectorize=always"]),
    "images that are augmented": (DIGITS, AUGMENTED),
    "pooled batches": (DIGITS, [MLP, "algorithm.name=centralized", "participation={name: full}"]),
    "the objective's distance": (QUADRATICS, ["eval.global=true"]),
}


def run_on_both(process, config, overrides):
    return process.submit(simulated.run_on_both, config, overrides).result()


def assert_same(results):
    here, there = results["params"]
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5 * np.abs(here).max())
    for ours, theirs in zip(*results["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() & COMPARED:
            assert theirs[name] == pytest.approx(ours[name], rel=1e-3, nan_ok=True), name


def overrides(cls, method):
    return getattr(cls, method) is not getattr(Algorithm, method)


CLIENTS_PART = ("start_point", "start", "direction", "finish", "full_gradient")  # parts that run on a device
OWN_WORK = [
    entry.name
    for entry in ALGORITHMS
    if entry.name == "fedavg"
    or any(overrides(entry.cls, method) for method in CLIENTS_PART)
    or entry.cls.pattern.sequential
    or "cut" in options_of(entry.name)
]


@pytest.mark.parametrize("name", one_in(8, OWN_WORK))
def test_every_algorithm_whose_clients_do_other_work_than_fedavgs_works_on_a_device(process, runs, name):
    """Three of four clients in each of three rounds: each takes part again, with the state that it kept."""
    needs = {"splitfed": ["algorithm.cut=body.0"], "ssl": ["algorithm.cut=body.0"]}.get(name, [])
    short = ["rounds=3", "num_clients=4", "eval.every=3"]
    assert_same(run_on_both(process, TINY, [*runs, *short, f"algorithm.name={name}", *needs]))


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_local_work_works_on_a_device(process, runs, case):
    config, overrides = CASES[case]
    assert_same(run_on_both(process, config, [*runs, "rounds=2", *overrides]))


NOISY = [*MOVING, "model={class_path: tests.runtime.modules.Noisy}", "runtime.micro_cohort=2"]
METHODS = ("fedavg", "scaffold", "focus", "fedaware")
LAUNCHED = {
    "samples one by one, lost uploads": (TINY, ["data.class_path=tests.runtime.tiny.Items"]),
    "images that are augmented": CASES["images that are augmented"],
}
LAUNCHED |= {f"{name}, together": (DIGITS, [*NOISY, f"algorithm.name={name}", TOGETHER]) for name in METHODS}
LAUNCHED |= {f"{name}, alone": (DIGITS, [*NOISY, f"algorithm.name={name}", ALONE]) for name in METHODS}


@pytest.mark.parametrize("case", LAUNCHED)
def test_the_launch_of_local_work_waits_for_nothing(process, runs, case):
    """So that the host goes on; also for several tasks, buffers, client states, norms, sums of uploads and batches."""
    config, settings = LAUNCHED[case]
    launches = process.submit(simulated.waits_of_launches, config, [*runs, *settings, "rounds=3"]).result()
    assert len(launches) >= 3
    assert not any(launches)


def test_the_simulated_device_refuses_and_waits(process):
    """The property on which the tests above rest."""
    assert process.submit(simulated.mix).result() == "expected all tensors to be on the same device"
    waits = process.submit(simulated.look).result()
    assert [wait.split(" in ")[0] for wait in waits] == ["aten._to_copy.default", "aten._local_scalar_dense.default"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_worker_with_a_gpu_whose_torch_finds_none_names_the_remedy():
    setup = SimpleNamespace(runtime=RuntimeConfig(gpus_per_worker=1), dtype="float32")
    with pytest.raises(BadConfig, match=r"gpus_per_worker=1, but torch \S+ .*, or set runtime.gpus_per_worker=0$"):
        devices(setup)


# -- the benchmark of a GPU: every part runs, and its verdicts can fail ------------------------------------------------


@pytest.fixture(scope="module")
def rows(process):
    """The rows of `python -m benchmarks.gpu` on the simulated device."""
    return process.submit(simulated.gpu_rows).result()


def test_each_part_of_the_benchmark_has_its_rows_and_four_of_its_twelve_clients_fit(rows):
    assert [(row["part"], row["result"]) for row in rows if row["part"] != "speed"] == [
        ("out of memory", "yes"),
        *[("against the host", "yes")] * 4,
    ]
    assert [row["case"] for row in rows if row["part"] == "speed"] == ["tiny, eager", "tiny, graph"]
    assert "ms a round" in rows[0]["detail"]
    assert [row["detail"] for row in rows if row["part"] == "out of memory"] == ["3 fit"]


def test_without_a_gpu_the_benchmark_says_so(capsys):
    assert main([]) == 2
    assert "no GPU here" in capsys.readouterr().out
