"""Workers and server on a simulated device: no operation mixes devices or waits needlessly; `benchmarks.gpu`."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.gpu import main
from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.algorithm import Algorithm
from raylfl.core.summing import Summing
from raylfl.errors import BadConfig
from raylfl.runtime.round.device_server import DeviceServer, difference_of
from raylfl.runtime.workers.module import devices
from tests.runtime import simulated
from tests.runtime.faults import options_of
from tests.runtime.test_run import DIGITS, QUADRATICS
from tests.runtime.tiny import PERFECT, TINY
from tests.shares import also, one_in

MLP = "model={name: mlp, init_args: {in_shape: [1, 8, 8], num_classes: 10}}"
MOVING = ["local.momentum=0.9", "local.clip_norm=1.0", "local.weight_decay=0.01"]
UNEQUAL = ["local.steps={uniform: [1, 4]}", *MOVING]
STILL = "model.init_args={norm: false, dropout: 0.0}"
AUGMENTED = [
    "data.class_path=tests.runtime.modules.Augmented",
    "model={name: mlp, init_args: {in_shape: [2, 8, 8], num_classes: 10}}",
    "local.batch_size=4",
]
IMAGES = {
    "name": "images",
    "rounds": 2,
    "num_clients": 2,
    "data": {"name": "synthetic_images", "init_args": {"shape": [3, 32, 32], "num_train": 16, "num_test": 4}},
    "model": {"name": "cnn_fedaware"},
    "local": {"steps": 2, "batch_size": 8},
    "runtime": {"backend": "local"},
}
COMPARED = {
    *("train/loss", "test/loss", "test/accuracy", "update/norm", "cost/uplink_floats"),
    *("global/loss", "global/grad_norm", "global/distance"),
}
CASES = {
    "unequal steps": (TINY, [STILL, *UNEQUAL, "runtime.micro_cohort=3", "eval.global=true"]),
    "the module's optimizer": (DIGITS, [MLP, "local.optimizer=module", "runtime.vectorize=never"]),
    "dropout and BatchNorm": (DIGITS, ["local.buffers=local"]),
    "split": (DIGITS, [MLP, "algorithm.name=splitfed", "algorithm.cut=layers.relu1"]),
    "images, all at once": (IMAGES, ["runtime.vectorize=always"]),
    "pooled batches": (DIGITS, [MLP, "algorithm.name=centralized", "participation={name: full}"]),
    "the objective's distance": (QUADRATICS, ["eval.global=true"]),
}


def run_on_both(process, config, overrides, launched=False):
    return process.submit(simulated.run_on_both, config, overrides, launched).result()


def assert_same(results):
    (here, there), rows = (each["params"] for each in results), [each["metrics"] for each in results]
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5 * np.abs(here).max())
    for ours, theirs in zip(*rows, strict=True):
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
def test_every_algorithm_whose_clients_do_other_work_than_fedavgs_works_on_a_device(process, name):
    """Three of four clients in each of three rounds: each takes part again, with the state that it kept."""
    needs = {"splitfed": ["algorithm.cut=body.0"], "ssl": ["algorithm.cut=body.0"]}.get(name, [])
    short = ["rounds=3", "num_clients=4", "eval.every=3"]
    assert_same(run_on_both(process, TINY, [*short, f"algorithm.name={name}", *needs]))


SELDOM = {"the module's optimizer", "images, all at once", "the objective's distance", "fedavg", "fedaware"}


def usual(cases):
    """Cases of a test, of which those in SELDOM are marked exhaustive."""
    return [also(case) if case in SELDOM else case for case in cases]


@pytest.mark.parametrize("case", usual(CASES))
def test_every_kind_of_local_work_works_on_a_device(process, case):
    config, overrides = CASES[case]
    assert_same(run_on_both(process, config, ["rounds=2", *overrides]))


NOISY = [*MOVING, "model={class_path: tests.runtime.modules.Noisy}", "runtime.micro_cohort=2"]
METHODS = {"fedavg": "always", "scaffold": "never", "focus": "always", "fedaware": "never"}
LAUNCHED = {
    "samples one by one, lost uploads": (TINY, ["data.class_path=tests.runtime.tiny.Items"]),
    "images that are augmented": (DIGITS, AUGMENTED),
    **{
        name: (DIGITS, [*NOISY, f"algorithm.name={name}", f"runtime.vectorize={form}"])
        for name, form in METHODS.items()
    },
}


@pytest.mark.parametrize("case", usual(LAUNCHED))
def test_the_launch_of_local_work_waits_for_nothing(process, case):
    """So that the host goes on; also for several tasks, buffers, client states, norms, sums of uploads and batches."""
    config, settings = LAUNCHED[case]
    results = run_on_both(process, config, [*settings, "rounds=3"], launched=True)
    assert_same(results)
    assert len(results[1]["launches"]) >= 3
    assert not any(results[1]["launches"])


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


@pytest.mark.exhaustive
def test_each_part_of_the_benchmark_has_its_rows_and_four_of_its_eight_clients_fit(process):
    rows = process.submit(simulated.gpu_rows).result()
    results = [(row["part"], row["result"]) for row in rows if row["part"] != "speed"]
    assert results == [("out of memory", "yes"), ("against the host", "yes")]
    assert [row["case"] for row in rows if row["part"] == "speed"] == ["tiny, eager", "tiny, graph"]
    assert "ms a round" in rows[0]["detail"]
    assert [row["detail"] for row in rows if row["part"] == "out of memory"] == ["4 fit"]


def test_without_a_gpu_the_benchmark_says_so(capsys):
    assert main([]) == 2
    assert "no GPU here" in capsys.readouterr().out


# -- the server on the device ------------------------------------------------------------------------------------------


SUMMING = [entry.name for entry in ALGORITHMS if issubclass(entry.cls, Summing) and entry.name != "splitfed"]
STAYS = "the server's vectors stay on the GPU"
SHORT = ["rounds=4", "num_clients=4"]
FEW = ["runtime.vectorize=never", "local.steps=1", "num_clients=2"]


def same_server(process, config, overrides):
    """Where the server was in a run on the device, whose results are those with the server on the host."""
    here, there = process.submit(simulated.server_on_both, config, overrides).result()
    assert np.array_equal(here["params"], there["params"])
    assert here["metrics"] == there["metrics"]
    return there["place"]


@pytest.mark.parametrize("name", one_in(6, SUMMING))
def test_a_method_has_the_same_bits_with_its_server_on_the_device(process, name):
    """Uploads are lost, in some rounds all of them. Methods that draw clients themselves stay on the host."""
    place = same_server(process, TINY, [*SHORT, f"algorithm.name={name}"])
    assert place == (None if name in ("fedacs", "cafedavg", "optimal_sampling") else STAYS)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (["eval.drift=true"], None),
        (["eval.average=0.9", "runtime.micro_cohort=1"], STAYS),
        (["data.init_args.spoilt=7", "runtime.on_nonfinite=drop", "participation={name: full}"], STAYS),
    ],
)
def test_measures_several_calls_and_a_dropped_upload_find_the_vectors_where_they_are(process, settings, place):
    """Drift reads single uploads on the host, and a dropped upload takes the server there for a round."""
    assert same_server(process, TINY, [*SHORT, *settings]) == place


@pytest.mark.parametrize("name", ["scaffold", also("fedadam")])
def test_a_resumed_run_takes_its_vectors_to_the_device(process, runs, name):
    """The run without a stop has all three rounds at once."""
    settings = [*runs, "runtime.vectorize=never", "num_clients=4", f"algorithm.name={name}"]
    whole = process.submit(simulated.rounds_there, TINY, [*settings, "rounds=3"]).result()
    given = TINY, [*settings, "rounds=2"], ["rounds=3"]
    params, places = process.submit(simulated.resumed_there, *given).result()
    assert np.array_equal(params, whole["params"])
    assert places == [STAYS, STAYS]


def test_parts_of_a_sum_on_the_device_and_on_the_host_are_added(process):
    """As where one of several calls did not fit into the card's memory, and its uploads went to the host."""
    mixed, expected = process.submit(simulated.mixed_sums).result()
    assert mixed == expected


class ByNumpy(FedAvg):
    def server_step_from_sums(self, server, sums, r):
        return {"x": torch.from_numpy(server["x"].numpy() - sums["update"].numpy())}, {}


class ByNumpyLater(ByNumpy):
    def server_step_from_sums(self, server, sums, r):
        return (super() if r.index == 2 else super(ByNumpy, self)).server_step_from_sums(server, sums, r)


class Rounded(FedAvg):
    """Another number on the device than on the host."""

    first = 0  # the round from which on it differs

    def server_step_from_sums(self, server, sums, r):
        away = 0.0 if server["x"].device.type == "cpu" or r.index < self.first else 1e-6
        return {"x": server["x"] - sums["update"] + away}, {}


class Late(Rounded):
    first = 2


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        also(ByNumpy, "server_step_from_sums raises"),
        (ByNumpyLater, "server_step_from_sums raises"),
        (Rounded, "another result on the GPU: `x` differs"),
    ],
)
def test_a_method_that_cannot_or_may_not_step_on_the_device_says_why(process, method, reason):
    settings = [f"algorithm={{class_path: tests.runtime.test_device.{method.__name__}}}", *FEW]
    place = same_server(process, PERFECT, [*SHORT, *settings])
    assert place.startswith("the server is on the host")
    assert reason in place


def test_a_step_that_becomes_wrong_on_the_device_ends_the_run(process):
    settings = ["algorithm={class_path: tests.runtime.test_device.Late}", *FEW]
    with pytest.raises(BadConfig, match=r"server_step_from_sums: use number 4 .*`x` differs.*runtime.step=autograd"):
        same_server(process, PERFECT, [*SHORT, *settings])


def test_uses_whose_number_is_a_power_of_two_are_compared():
    server, calls = DeviceServer(torch.device("cpu")), []
    state = {"x": torch.ones(3), "seen": torch.zeros(2)}
    for number in range(1, 10):
        server.call("step", lambda state, number=number: calls.append(number) or state, state)
    assert calls == [1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9]
    assert server.refusal is None


def test_differences_are_found_in_every_kind_of_value():
    ones = torch.ones(2)
    alike = {"x": ones, "n": 3, "who": (np.arange(2), 0.5, "a"), "norm": float("nan")}
    assert difference_of(alike, {**alike, "x": ones.clone(), "who": (np.arange(2), 0.5 + 1e-7, "a")}) is None
    for other in (
        {**alike, "x": ones + 1e-6},
        {**alike, "x": ones.double()},
        {**alike, "n": 4},
        {**alike, "who": (np.arange(2), 0.501, "a")},
        {**alike, "who": (np.ones(2), 0.5, "a")},
        {**alike, "norm": 0.0},
        {"x": ones},
    ):
        assert difference_of(alike, other) is not None
